// Runs before anything is drawn, so that a page never flashes in the wrong colours.
(() => {
  const kept = localStorage.getItem("secureafl-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
