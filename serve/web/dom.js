// Elements of the page and pictures.

export const $ = (id) => document.getElementById(id);

/** A new element with these properties and children (elements or texts). */
export function element(tag, properties, ...children) {
  const created = Object.assign(document.createElement(tag), properties);
  created.append(...children);
  return created;
}

/** The picture at an address, with its size. Throws if this browser cannot show it. */
export async function loadPicture(url) {
  const picture = element("img", { src: url });
  await picture.decode();
  return picture;
}
