// What tests of pages look at: `checks` becomes a global of the page.
globalThis.checks = (() => {
  const all = (query) => [...document.querySelectorAll(query)];
  const probe = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const parse = (color) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = color;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = probe.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const luminance = (color) => {
    const [r, g, b] = color.map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };

  // The contrast of text with its background, composed of the backgrounds of all elements around it.
  const contrast = (element) => {
    const chain = [];
    for (let e = element; e; e = e.parentElement) chain.unshift(getComputedStyle(e));
    const back = chain.reduce((below, style) => over(parse(style.backgroundColor), below), [255, 255, 255]);
    const own = chain.at(-1), text = over(parse(element instanceof SVGElement ? own.fill : own.color), back);
    const [dim, bright] = [luminance(text), luminance(back)].sort((a, b) => a - b);
    return (bright + 0.05) / (dim + 0.05);
  };

  return {
    // The number of texts, and those whose contrast is less than the 4.5 of WCAG 2 AA.
    faint() {
      const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
      let count = 0;
      while (walker.nextNode()) {
        const element = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
        if (!text || element.closest("script, style, option, noscript") || !element.checkVisibility()) continue;
        const value = contrast(element);
        count++;
        if (value < 4.5) found.push(`${value.toFixed(2)} ${element.tagName} ${element.className}: ${text}`);
      }
      return [count, found];
    },
    // Elements that scroll sideways.
    wide: () =>
      all("body *")
        .filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === "auto")
        .map((e) => e.outerHTML.slice(0, 99)),
    // Elements that Tab reaches, in the order of the page.
    controls: () =>
      all("a[href], button, input, select, summary, [tabindex='0']").filter((e) => e.checkVisibility() && e.tabIndex >= 0),
    // The number of the focused control, and whether its focus is visible.
    focused() {
      const style = getComputedStyle(document.activeElement);
      const isVisible = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 1;
      return [checks.controls().indexOf(document.activeElement), isVisible];
    },
    // How far the fill of an element is from the panel to the accent, 0 to 1.
    shade(element) {
      const style = getComputedStyle(element), colors = ["--panel", "--accent"].map((name) => style.getPropertyValue(name));
      const [cell, panel, accent] = [style.fill, ...colors].map((color) => parse(color)[0]);
      return (panel - cell) / (panel - accent);
    },
  };
})();
