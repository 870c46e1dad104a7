// Draw the page, and draw anew what the reader's choices change.

const runsChanged = () => {
  drawCurves();
  drawRows();
  if (view.selected) drawDetail();
};

drawLegend(runsChanged);
drawOverview();
drawCurveSection();
drawCompletionSection();

const keys = ["j / k  next, previous completion", "[ / ]  step", "/  search", "Esc  close"];
byId("foot").append(
  `Made by purerl report, ${new Date(report.made).toUTCString()}. `,
  h("span", {}, keys.join("   ·   ")),
);

let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  drawCurves();
});

// On paper everything is unfolded.
addEventListener("beforeprint", () => document.querySelectorAll("details.group").forEach((fold) => (fold.open = true)));
