//! The picture as a PNG file: drawn again as one SVG document, with the colours that the page has now.
//!
//! Invariant: nothing leaves the browser.

use leptos::prelude::*;
use wasm_bindgen::prelude::*;
use web_sys::{Blob, CanvasRenderingContext2d, HtmlAnchorElement, HtmlCanvasElement, HtmlImageElement, Url};

use super::board::Board;
use crate::browser::words;
use crate::view::lanes::lane;
use crate::view::markup::{self, Picture};
use crate::view::part::LEGEND;
use crate::view::rows::state;
use crate::view::steps::strip;

/// Lanes of a picture at most.
const MOST_LANES: usize = 60;
/// Pixels of the file a pixel of the page.
const SCALE: f64 = 2.0;

/// Gives the picture to the person as a file; what hinders it is said in `failed`.
pub fn download(board: Board, failed: RwSignal<String>) {
    failed.set(String::new());
    let (svg, size) = drawn(board);
    if let Err(error) = rasterise(&svg, size, failed) {
        failed.set(format!("No picture could be made: {}.", words(&error)));
    }
}

fn drawn(board: Board) -> (String, (f64, f64)) {
    let view = board.viewport.get_untracked();
    let (mut labels, mut lanes) = (Vec::new(), Vec::new());
    let rows = board.rows.get_untracked();
    let known = rows.iter().rev().filter_map(|id| board.known(*id));
    let seen = known.filter(|known| {
        let (from, to) = (known.0.cut.from().unwrap_or(0), known.0.cut.to().unwrap_or(0));
        view.x(to) >= 0.0 && view.x(from) <= view.width
    });
    for known in seen.take(MOST_LANES) {
        let record = &known.0.record;
        labels.push(format!("{} {}", record.engine_id, state(record)));
        lanes.push(markup::lane(&lane(&known.0.cut, &record.token_at, &view)));
    }
    labels.reverse();
    lanes.reverse();
    let steps =
        board.session.with_untracked(|session| markup::steps(&strip(&session.steps, &view), view.width));
    let context = board.session.with_untracked(|session| session.backend.clone());
    let caption = context.map_or("Firstlight".to_owned(), |b| {
        format!("Firstlight · {} {} · {}", b.model.name, b.model.quantisation, b.adapter)
    });
    let ticks = board.ticks_now();
    let style = style();
    let picture = Picture {
        width: view.width,
        labels: &labels,
        lanes: &lanes,
        steps: &steps,
        ticks: &ticks,
        style: &style,
        caption: &caption,
    };
    (picture.svg(), picture.size())
}

/// The classes of the picture with the colours that the page computes for them just now.
fn style() -> String {
    let root = document().document_element();
    let computed = root.and_then(|root| window().get_computed_style(&root).ok().flatten());
    let colour = |name: &str, instead: &str| {
        let value =
            computed.as_ref().and_then(|style| style.get_property_value(name).ok()).unwrap_or_default();
        let value = value.trim();
        // What is no plain colour has no business in a style sheet of ours.
        let plain =
            !value.is_empty() && value.chars().all(|c| c.is_ascii_alphanumeric() || "#(),.% ".contains(c));
        if plain { value.to_owned() } else { instead.to_owned() }
    };
    let (ink, soft, paper) =
        (colour("--ink", "#111"), colour("--ink-soft", "#555"), colour("--panel", "#fff"));
    let (line, danger) = (colour("--line", "#ddd"), colour("--danger", "#b00"));
    let mut sheet: String = LEGEND
        .iter()
        .map(|(class, ..)| format!(".part-{class}{{fill:{}}}", colour(&format!("--part-{class}"), "#888")))
        .collect();
    sheet.push_str(&format!(
        "text{{font:12px system-ui,sans-serif;fill:{soft}}}.paper,.hatch{{fill:{paper}}}.hatch{{fill-opacity:.75}}\
         .grid,.base{{stroke:{line};fill:none}}.cut-line,.tick{{stroke:{paper};fill:none}}.tick{{stroke-opacity:.65}}\
         .tick-slow,.mark-cross{{stroke:{danger};stroke-width:2;fill:none}}.mark-line,.mark-end{{stroke:{ink};fill:none}}\
         .mark-end{{stroke-width:2}}.mark-token,.mark-write{{fill:{ink};stroke:{paper}}}.mark-evicted{{fill:{danger}}}"
    ));
    sheet
}

fn rasterise(svg: &str, (width, height): (f64, f64), failed: RwSignal<String>) -> Result<(), JsValue> {
    let parts = web_sys::js_sys::Array::of1(&svg.into());
    let kind = web_sys::BlobPropertyBag::new();
    kind.set_type("image/svg+xml");
    let url = Url::create_object_url_with_blob(&Blob::new_with_str_sequence_and_options(&parts, &kind)?)?;
    let image = HtmlImageElement::new()?;
    let (loaded, source) = (image.clone(), url.clone());
    let on_load = Closure::once_into_js(move || {
        let done = on_canvas(&loaded, width, height);
        // A URL that cannot be revoked only costs its memory.
        Url::revoke_object_url(&source).ok();
        if let Err(error) = done {
            failed.set(format!("No picture could be made: {}.", words(&error)));
        }
    });
    let on_error = Closure::once_into_js(move || {
        failed.set("No picture could be made: the browser cannot draw it.".into())
    });
    image.set_onload(Some(on_load.unchecked_ref()));
    image.set_onerror(Some(on_error.unchecked_ref()));
    image.set_src(&url);
    Ok(())
}

fn on_canvas(image: &HtmlImageElement, width: f64, height: f64) -> Result<(), JsValue> {
    let canvas: HtmlCanvasElement = document().create_element("canvas")?.unchecked_into();
    canvas.set_width((width * SCALE) as u32);
    canvas.set_height((height * SCALE) as u32);
    let context: CanvasRenderingContext2d =
        canvas.get_context("2d")?.ok_or_else(|| JsValue::from_str("no canvas"))?.unchecked_into();
    context.draw_image_with_html_image_element_and_dw_and_dh(
        image,
        0.0,
        0.0,
        width * SCALE,
        height * SCALE,
    )?;
    let keep = Closure::once_into_js(move |blob: Option<Blob>| {
        let saved = blob.ok_or_else(|| JsValue::from_str("no image")).and_then(|blob| save(&blob));
        if let Err(error) = saved {
            web_sys::console::error_1(&error);
        }
    });
    canvas.to_blob(keep.unchecked_ref())
}

fn save(blob: &Blob) -> Result<(), JsValue> {
    let url = Url::create_object_url_with_blob(blob)?;
    let anchor: HtmlAnchorElement = document().create_element("a")?.unchecked_into();
    anchor.set_href(&url);
    anchor.set_download("firstlight-timelines.png");
    anchor.click();
    Url::revoke_object_url(&url)
}
