//! What the page does with the browser around it: files to keep, the clipboard, focus and scrolling, the address.
//!
//! It decides nothing. Invariant: where a browser refuses, the page goes on.

use firstlight_engine::report;
use leptos::prelude::*;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{
    Blob, BlobPropertyBag, File, FileList, HtmlAnchorElement, HtmlElement, Response, Url, UrlSearchParams,
    js_sys,
};

use crate::browser::words;

/// The page's address.
pub fn page_url() -> String {
    location().href().unwrap_or_default()
}

/// A parameter of the page's address.
pub fn parameter(name: &str) -> Option<String> {
    let search = location().search().ok()?;
    UrlSearchParams::new_with_str(&search).ok()?.get(name)
}

/// What the document says under a name, as an address.
fn named_address(name: &str) -> Option<Url> {
    let meta = document().query_selector(&format!("meta[name='{name}']")).ok().flatten()?;
    Url::new_with_base(&meta.get_attribute("content")?, &page_url()).ok()
}

/// The server that this page came from, if it says so.
pub fn own_server() -> Option<String> {
    let address = named_address("firstlight-server")?;
    address.set_search("");
    address.set_hash("");
    Some(address.href().trim_end_matches('/').to_owned())
}

/// The figures that this document has in it, where it is a report. As a file, which a worker can read: of a document from a
/// disk it can read no address.
pub fn own_figures() -> Option<File> {
    let figures = document().get_element_by_id("firstlight-report")?.text_content()?;
    File::new_with_str_sequence(&js_sys::Array::of1(&figures.into()), "report.json").ok()
}

/// Where the page in one document lies, for a report to be kept; a report has none.
pub fn report_template() -> Option<String> {
    named_address("firstlight-report").map(|address| address.href())
}

/// Gives the person a report: the page in one document with these figures in it.
///
/// # Errors
/// The document cannot be had, in a sentence.
pub async fn download_report(name: &str, figures: &str) -> Result<(), String> {
    let lost = |error: JsValue| {
        format!("The report could not be made, because the page's own file does not come: {}", words(&error))
    };
    let address = report_template().unwrap_or_default();
    let answer = JsFuture::from(window().fetch_with_str(&address)).await.map_err(lost)?;
    let answer: Response = answer.unchecked_into();
    let text = JsFuture::from(answer.text().map_err(lost)?).await.map_err(lost)?.as_string();
    let template = text.filter(|_| answer.ok()).unwrap_or_default();
    let html = report::document(&template, figures).ok_or_else(|| {
        "The report could not be made, because the page's own file is not on this host; reload the page."
            .to_owned()
    })?;
    download(name, &html, "text/html");
    Ok(())
}

/// Gives the person a file of this kind.
pub fn download(name: &str, text: &str, kind: &str) {
    let save = || -> Result<(), JsValue> {
        let options = BlobPropertyBag::new();
        options.set_type(kind);
        let blob = Blob::new_with_str_sequence_and_options(&js_sys::Array::of1(&text.into()), &options)?;
        let address = Url::create_object_url_with_blob(&blob)?;
        let anchor: HtmlAnchorElement = document().create_element("a")?.unchecked_into();
        anchor.set_href(&address);
        anchor.set_download(name);
        anchor.click();
        // The download has begun by then.
        set_timeout(move || drop(Url::revoke_object_url(&address)), std::time::Duration::from_secs(60));
        Ok(())
    };
    if let Err(error) = save() {
        web_sys::console::error_1(&error);
    }
}

/// Puts text on the clipboard; `done` hears whether that went well.
pub fn copy(text: &str, done: impl FnOnce(bool) + 'static) {
    // A page without a secure origin has no clipboard.
    let navigator = window().navigator();
    let has_clipboard =
        js_sys::Reflect::get(&navigator, &"clipboard".into()).is_ok_and(|c| !c.is_undefined());
    if !has_clipboard {
        return done(false);
    }
    let promise = navigator.clipboard().write_text(text);
    leptos::task::spawn_local(async move { done(JsFuture::from(promise).await.is_ok()) });
}

fn element(id: &str) -> Option<HtmlElement> {
    document().get_element_by_id(id)?.dyn_into().ok()
}

/// Focuses an element by its id.
pub fn focus(id: &str) {
    if let Some(element) = element(id) {
        drop(element.focus());
    }
}

/// Takes an element off the page.
pub fn remove(id: &str) {
    if let Some(element) = element(id) {
        element.remove();
    }
}

/// Keeps a reader who is at the end at the end of what is about to grow; others stay where they read.
pub fn follow(id: &str) {
    let Some(element) = element(id) else { return };
    let below = element.scroll_height() - element.scroll_top() - element.client_height();
    if below < 48 {
        // Once the growth is on the page.
        request_animation_frame(move || element.set_scroll_top(element.scroll_height()));
    }
}

/// Brings an element into view from its beginning.
pub fn into_view(id: &str) {
    if let Some(element) = element(id) {
        element.scroll_into_view();
    }
}

/// The files of a list.
pub fn listed(files: Option<FileList>) -> Vec<File> {
    files.map(|files| (0..files.length()).filter_map(|at| files.get(at)).collect()).unwrap_or_default()
}

/// The answer in which the keyboard's focus is, by its number.
pub fn focused_answer() -> Option<u64> {
    let answer = document().active_element()?.closest("[data-ask]").ok().flatten()?;
    answer.get_attribute("data-ask")?.parse().ok()
}

/// Whether the keyboard's focus is where letters are typed.
pub fn is_typing() -> bool {
    document()
        .active_element()
        .is_some_and(|element| ["INPUT", "TEXTAREA", "SELECT"].contains(&element.tag_name().as_str()))
}

/// What this browser keeps of a setting.
pub fn kept(name: &str) -> Option<String> {
    window().local_storage().ok().flatten()?.get_item(name).ok().flatten()
}

/// Keeps a setting, where the browser lets it.
pub fn keep(name: &str, value: &str) {
    if let Ok(Some(storage)) = window().local_storage() {
        drop(storage.set_item(name, value));
    }
}

/// Opens a disclosure by its class.
pub fn open_details(class: &str) {
    let found = document().query_selector(&format!("details.{class}")).ok().flatten();
    if let Some(details) = found {
        drop(details.set_attribute("open", ""));
    }
}
