// The reader's choice of colours, before anything is drawn; the style sheet follows the system without one.
try {
  document.documentElement.dataset.theme = localStorage.getItem("idc.theme") || "";
} catch {
  // A browser that keeps nothing has no choice kept.
}
