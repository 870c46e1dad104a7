"""game.py"""

import random

from purerl.envs.protocol import Observation


class GuessTheNumber:
    def __init__(self, maximum=10):
        self.maximum = maximum

    def reset(self, example, seed):
        self.number = random.Random(seed).randint(1, self.maximum)
        self.is_over = False
        return self.say(f"Guess my number. It is from 1 to {self.maximum}. Write only a number.")

    def step(self, text, calls):
        if self.is_over:
            raise RuntimeError("the game is over")
        guess = int(text) if text.isdecimal() and len(text) < 9 else 0
        if guess == self.number:
            self.is_over = True
            return Observation(reward=1.0, done=True)
        return self.say("Higher." if guess < self.number else "Lower.", reward=0.0)

    def close(self):
        pass

    def say(self, text, **fields):
        return Observation(messages=[{"role": "user", "content": text}], **fields)
