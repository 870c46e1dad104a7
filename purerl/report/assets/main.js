// Draws all sections of the page, and redraws them when the visible runs or the window size change.

const onVisibleRunsChange = () => {
  drawCurves();
  drawRows();
  if (view.selectedRow) drawDetail();
};

drawLegend(onVisibleRunsChange);
drawOverview();
drawCurveSection();
drawCompletionSection();

const shortcuts = ["j / k  next, previous completion", "[ / ]  previous, next step", "/  search", "Esc  close"];
byId("footer").append(
  `Created by purerl report, ${new Date(report.created).toUTCString()}. `,
  h("span", {}, shortcuts.join("   ·   ")),
);

let windowWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === windowWidth) return;
  windowWidth = innerWidth;
  drawCurves();
});

// Printing includes the charts of all groups.
addEventListener("beforeprint", () =>
  document.querySelectorAll("details.group").forEach((group) => (group.open = true)),
);
