// Before the first paint, so that nobody sees the other theme flash: the remembered choice, if there is one.
try {
  const chosen = localStorage.getItem("refrain-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // No storage here: the system's theme it is.
}
