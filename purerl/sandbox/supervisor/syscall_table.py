"""The system calls that programs in the sandbox may make, and those that are refused by name.

Each entry is name:number on x86_64:number on aarch64, from Linux's `asm/unistd_64.h` and `asm-generic/unistd.h`; `-`
where an architecture does not have the call. A call that is in neither list does not exist in the sandbox (ENOSYS), so
that libraries use an older one. This includes clone3 and io_uring.
"""

from __future__ import annotations

__all__ = ["ALLOWED", "REFUSED", "numbers_of"]

ALLOWED = """
read:0:63 write:1:64 open:2:- openat:257:56 openat2:437:437 creat:85:- close:3:57 close_range:436:436 stat:4:-
fstat:5:80 lstat:6:- newfstatat:262:79 statx:332:291 access:21:- faccessat:269:48 faccessat2:439:439 poll:7:-
ppoll:271:73 select:23:- pselect6:270:72 lseek:8:62 pread64:17:67 pwrite64:18:68 readv:19:65 writev:20:66
preadv:295:69 pwritev:296:70 preadv2:327:286 pwritev2:328:287 sendfile:40:71 copy_file_range:326:285 dup:32:23
dup2:33:- dup3:292:24 pipe:22:- pipe2:293:59 fcntl:72:25 flock:73:32 fsync:74:82 fdatasync:75:83 syncfs:306:267
sync_file_range:277:84 truncate:76:45 ftruncate:77:46 getdents:78:- getdents64:217:61 getcwd:79:17 chdir:80:49
fchdir:81:50 rename:82:- renameat:264:38 renameat2:316:276 mkdir:83:- mkdirat:258:34 rmdir:84:- link:86:-
linkat:265:37 unlink:87:- unlinkat:263:35 symlink:88:- symlinkat:266:36 readlink:89:- readlinkat:267:78 chmod:90:-
fchmod:91:52 fchmodat:268:53 fchmodat2:-:- chown:92:- fchown:93:55 lchown:94:- fchownat:260:54 umask:95:166
utime:132:- utimes:235:- utimensat:280:88 futimesat:261:- mknod:133:- mknodat:259:33 fallocate:285:47
fadvise64:221:223 readahead:187:213 statfs:137:43 fstatfs:138:44 getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10
listxattr:194:11 llistxattr:195:12 flistxattr:196:13 epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21
epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284:- eventfd2:290:19 timerfd_create:283:85
timerfd_settime:286:86 timerfd_gettime:287:87 signalfd:282:- signalfd4:289:74 brk:12:214 munmap:11:215 mremap:25:216
mprotect:10:226 madvise:28:233 msync:26:227 mincore:27:232 mlock:149:228 munlock:150:229 mlock2:325:284
mlockall:151:230 munlockall:152:231 membarrier:324:283 get_mempolicy:239:236 pkey_mprotect:329:288
pkey_alloc:330:289 pkey_free:331:290 fork:57:- vfork:58:- execve:59:221 execveat:322:281 exit:60:93
exit_group:231:94 wait4:61:260 waitid:247:95 kill:62:129 tkill:200:130 tgkill:234:131 getpid:39:172 getppid:110:173
gettid:186:178 getpgrp:111:- getpgid:121:155 setpgid:109:154 getsid:124:156 setsid:112:157 getuid:102:174
geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150 setuid:105:146 setgid:106:144
setreuid:113:145 setregid:114:143 setresuid:117:147 setresgid:119:149 setfsuid:122:151 setfsgid:123:152
getgroups:115:158 setgroups:116:159 getrlimit:97:163 setrlimit:160:164 prlimit64:302:261 getrusage:98:165
times:100:153 sysinfo:99:179 uname:63:160 set_tid_address:218:96 set_robust_list:273:99 get_robust_list:274:100
rseq:334:293 arch_prctl:158:- prctl:157:167 futex:202:98 futex_waitv:449:449 sched_yield:24:124
sched_getaffinity:204:123 sched_setaffinity:203:122 sched_getparam:143:121 sched_setparam:142:118
sched_getscheduler:145:120 sched_setscheduler:144:119 sched_get_priority_max:146:125 sched_get_priority_min:147:126
sched_rr_get_interval:148:127 sched_getattr:315:275 sched_setattr:314:274 getpriority:140:141 setpriority:141:140
ioprio_get:252:31 nanosleep:35:101 clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115
gettimeofday:96:169 time:201:- alarm:37:- getitimer:36:102 setitimer:38:103 timer_create:222:107
timer_settime:223:110 timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111 pause:34:-
restart_syscall:219:128 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigpending:127:136 rt_sigtimedwait:128:137
rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 rt_sigsuspend:130:133 rt_sigreturn:15:139 sigaltstack:131:132
pidfd_open:434:434 pidfd_send_signal:424:424 getcpu:309:168 capget:125:90 capset:126:91 getrandom:318:278
bind:49:200 listen:50:201 accept:43:202 accept4:288:242 connect:42:203 getsockname:51:204 getpeername:52:205
sendto:44:206 recvfrom:45:207 sendmsg:46:211 recvmsg:47:212 sendmmsg:307:269 recvmmsg:299:243 shutdown:48:210
setsockopt:54:208 getsockopt:55:209 mmap:9:222 clone:56:220 ioctl:16:29 socket:41:198 socketpair:53:199
"""
"""Calls that are allowed. `purerl.sandbox.supervisor.seccomp` also looks at the arguments of some of them."""

REFUSED = """
ptrace:101:117 process_vm_readv:310:270 process_vm_writev:311:271 process_madvise:440:440 kcmp:312:272
pidfd_getfd:438:438 mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51 unshare:272:97 setns:308:268
move_mount:429:429 open_tree:428:428 fsopen:430:430 fsconfig:431:431 fsmount:432:432 fspick:433:433
mount_setattr:442:442 keyctl:250:219 add_key:248:217 request_key:249:218 bpf:321:280 perf_event_open:298:241
userfaultfd:323:282 init_module:175:105 finit_module:313:273 delete_module:176:106 kexec_load:246:104
kexec_file_load:320:294 reboot:169:142 swapon:167:224 swapoff:168:225 syslog:103:116 acct:163:89 quotactl:179:60
settimeofday:164:170 clock_settime:227:112 adjtimex:159:171 clock_adjtime:305:266 sethostname:170:161
setdomainname:171:162 iopl:172:- ioperm:173:- open_by_handle_at:304:265 name_to_handle_at:303:264
fanotify_init:300:262 fanotify_mark:301:263 vhangup:153:58 personality:135:92 modify_ldt:154:- inotify_init:253:-
inotify_init1:294:26 inotify_add_watch:254:27 inotify_rm_watch:255:28 memfd_create:319:279 memfd_secret:447:447
shmget:29:194 shmat:30:196 shmctl:31:195 shmdt:67:197 semget:64:190 semop:65:193 semctl:66:191 semtimedop:220:192
msgget:68:186 msgsnd:69:189 msgrcv:70:188 msgctl:71:187 mq_open:240:180 mq_unlink:241:181 setxattr:188:5
lsetxattr:189:6 fsetxattr:190:7 removexattr:197:14 lremovexattr:198:15 fremovexattr:199:16 sync:162:81 splice:275:76
tee:276:77 vmsplice:278:75 migrate_pages:256:238 move_pages:279:239 mbind:237:235 set_mempolicy:238:237
"""
"""Calls that fail with EPERM: they change the system, look into other processes, or hold memory that no limit sees."""


def numbers_of(table: str, machine: str) -> dict[str, int]:
    """The numbers of the calls in `table` on `machine`, by name.

    >>> numbers_of("read:0:63 fork:57:-", "aarch64")
    {'read': 63}
    """
    column = {"x86_64": 1, "aarch64": 2}[machine]
    entries = (entry.split(":") for entry in table.split())
    return {entry[0]: int(entry[column]) for entry in entries if entry[column] != "-"}
