//! The page around its components: the way to the worker, text that becomes nodes, keys, fields, files.
//!
//! The worker is a stand-in that says again what it hears, as notices. It breaks when it is to delete something, and ends when
//! it is to stop.

use std::cell::RefCell;
use std::rc::Rc;

use leptos::prelude::*;
use wasm_bindgen::prelude::*;
use web_sys::{Element, File, HtmlElement, js_sys};

use super::{js, js_later, until};
use crate::page::composer::Composer;
use crate::page::files;
use crate::page::keys::{Keys, listen};
use crate::page::lane::open_on_demand;
use crate::page::link::Link;
use crate::page::prose::Prose;
use crate::page::state::Page;
use crate::protocol::{AskId, Backend, BackendKind, Command, Event};
use crate::view::query::Query;

super::claims![
    events_are_handed_on_in_the_order_in_which_they_were_sent,
    files_travel_beside_their_command,
    a_worker_that_cannot_be_started_or_dies_is_told,
    what_a_model_wrote_never_becomes_an_element,
    a_block_that_does_not_change_keeps_its_nodes,
    a_number_out_of_range_is_told_beside_its_field_and_nothing_is_sent,
    keys_are_left_to_who_is_typing,
    a_wish_for_a_lane_is_granted_once_it_is_known,
    what_is_to_be_kept_is_kept_and_parameters_are_read,
    a_file_is_given_with_its_name_and_all_of_its_text,
];

/// Says again what it hears: the text in a notice, and of files their names and sizes.
const ECHO: &str = "onmessage = ({ data: [text, ...files] }) => {
    if (text.includes('delete')) throw new Error('it broke');
    if (text === '\"stop_opening\"') close();
    const more = files.map(({ name, size }) => ` ${name} ${size}`).join('');
    postMessage(JSON.stringify({ notice: { sentence: text + more } }));
}";

/// Makes the next worker run this.
pub fn use_worker(script: &str) {
    let script = JsValue::from(script);
    let make: js_sys::Function =
        js("(text) => { globalThis.firstlightScript = URL.createObjectURL(new Blob([text], { type: 'text/javascript' })); }")
            .unchecked_into();
    make.call1(&JsValue::UNDEFINED, &script).expect("a script has an address");
}

/// A part of the page on the page, until it is dropped.
pub struct Stage {
    /// What the part is of.
    pub page: Page,
    place: HtmlElement,
    mounted: Option<Box<dyn std::any::Any>>,
}

impl Stage {
    /// Puts up what `view` makes, before the stand-in.
    pub fn new<V: IntoView + 'static>(view: impl FnOnce(Page) -> V + 'static) -> Self {
        use_worker(ECHO);
        let place: HtmlElement = document().create_element("div").expect("it is a name").unchecked_into();
        document().body().expect("there is one").append_child(&place).expect("it takes it");
        let made = Rc::new(RefCell::new(None));
        let hand = Rc::clone(&made);
        let mounted = leptos::mount::mount_to(place.clone(), move || {
            let page = Page::new(Query::default(), false);
            provide_context(page);
            page.start_worker();
            *hand.borrow_mut() = Some(page);
            view(page)
        });
        let page = made.take().expect("it was mounted");
        Self { page, place, mounted: Some(Box::new(mounted)) }
    }

    /// The one element of this selector.
    pub fn one(&self, selector: &str) -> HtmlElement {
        let found = self.place.query_selector(selector).expect("it is a selector");
        found.unwrap_or_else(|| panic!("no {selector} in {}", self.place.inner_html())).unchecked_into()
    }

    /// How many elements there are of it.
    pub fn count(&self, selector: &str) -> u32 {
        self.place.query_selector_all(selector).expect("it is a selector").length()
    }

    /// All text.
    pub fn text(&self) -> String {
        self.place.text_content().unwrap_or_default()
    }

    /// Types into a field.
    pub fn type_into(&self, selector: &str, text: &str) {
        let field = self.one(selector);
        js_sys::Reflect::set(&field, &"value".into(), &text.into()).expect("a field takes it");
        dispatch(&field, "new Event('input', { bubbles: true })");
    }

    /// Waits until this is the last that the worker has heard.
    pub async fn expect_last(&self, command: &Command) {
        let text = serde_json::to_string(command).expect("a command is JSON");
        let page = self.page;
        until(|| page.notices.with_untracked(|notices| notices.last() == Some(&text))).await;
    }

    /// What the worker heard, the last few.
    pub fn heard(&self) -> Vec<Command> {
        let notices = self.page.notices.get_untracked();
        notices.iter().map(|text| serde_json::from_str(text).expect("a command is JSON")).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.page.send(&Command::StopOpening);
        self.mounted.take();
        self.place.remove();
    }
}

/// Lets an element have an event; whether nobody prevented what it does.
pub fn dispatch(element: &Element, event: &str) -> bool {
    let event: web_sys::Event = js(event).unchecked_into();
    element.dispatch_event(&event).expect("an event can be had")
}

fn key(name: &str) -> String {
    format!("new KeyboardEvent('keydown', {{ key: '{name}', bubbles: true, cancelable: true }})")
}

/// After the next frame has been made.
pub async fn frame() {
    js_later("new Promise((next) => requestAnimationFrame(() => setTimeout(next, 0)))").await;
}

/// What can answer.
pub fn backend() -> Backend {
    Backend {
        kind: BackendKind::Tab,
        url: None,
        model: firstlight_engine::timeline::ModelLabel { name: "a model".into(), ..Default::default() },
        adapter: "an adapter".into(),
        slots: Some(4),
        max_model_len: Some(100),
        chat: true,
        kept: true,
        bench: None,
    }
}

async fn events_are_handed_on_in_the_order_in_which_they_were_sent() {
    use_worker(
        "onmessage = () => {
            for (let n = 0; n < 1000; n++) postMessage(JSON.stringify({ notice: { sentence: `${n}` } }));
        }",
    );
    let heard = Rc::new(RefCell::new(Vec::new()));
    let hand = Rc::clone(&heard);
    let link = Link::start(move |event| hand.borrow_mut().push(event), |why| panic!("{why}"));
    let link = link.expect("a browser starts workers");
    link.send(&Command::ListModels);
    until(|| heard.borrow().len() == 1000).await;
    for (n, event) in heard.borrow().iter().enumerate() {
        assert_eq!(*event, Event::Notice { sentence: n.to_string() });
    }
    link.send(&Command::ListModels);
    link.stop();
    // By the time that another has come up and answered, it would have been heard.
    let other = Stage::new(|_| ());
    other.page.send(&Command::Reopen);
    other.expect_last(&Command::Reopen).await;
    assert_eq!(heard.borrow().len(), 1000, "nothing is heard of one that was stopped");
}

async fn files_travel_beside_their_command() {
    use_worker(ECHO);
    let heard = Rc::new(RefCell::new(Vec::new()));
    let hand = Rc::clone(&heard);
    let link = Link::start(move |event| hand.borrow_mut().push(event), |why| panic!("{why}"));
    let link = link.expect("a browser starts workers");
    let file: File = js("new File(['12345'], 'a b.gguf')").unchecked_into();
    link.send_with(&Command::Reopen, &[file.clone(), file]);
    until(|| !heard.borrow().is_empty()).await;
    let sentence = "\"reopen\" a b.gguf 5 a b.gguf 5".to_owned();
    assert_eq!(*heard.borrow(), [Event::Notice { sentence }]);
    link.stop();
}

async fn a_worker_that_cannot_be_started_or_dies_is_told() {
    js("delete globalThis.firstlightScript");
    let refused = Link::start(|_| {}, |_| {}).map(|_| ()).expect_err("there is no script");
    assert_eq!(refused, "the page was not started by its own script");
    for (script, said) in
        [("throw new Error('it broke')", "it broke"), ("import './none.js'", "could not be")]
    {
        use_worker(script);
        let died = Rc::new(RefCell::new(String::new()));
        let hand = Rc::clone(&died);
        let link =
            Link::start(|_| {}, move |why| *hand.borrow_mut() = why).expect("a browser starts workers");
        until(|| !died.borrow().is_empty()).await;
        assert!(died.borrow().contains(said), "{}", died.borrow());
        link.stop();
    }
}

async fn what_a_model_wrote_never_becomes_an_element() {
    const EVIL: &str = "<img src=x onerror=\"globalThis.ran = 1\"><script>globalThis.ran = 1</script>";
    for text in [
        EVIL.to_owned(),
        format!("# {EVIL}"),
        format!("- {EVIL}\n- **{EVIL}**"),
        format!("1. *{EVIL}* `{EVIL}`"),
        format!("```\"><script>globalThis.ran=1</script>\n{EVIL}\n```"),
        format!("&lt;b&gt; <b>x</b> [x](javascript:globalThis.ran=1) {EVIL}"),
    ] {
        let stage = Stage::new(move |_| view! { <Prose text=RwSignal::new(text)/> });
        frame().await;
        assert_eq!(stage.count("img, script, b, a, [onerror]"), 0, "{}", stage.place.inner_html());
        assert!(
            stage.text().contains("<script>globalThis.ran = 1</script>"),
            "it is shown: {}",
            stage.text()
        );
        assert!(js("globalThis.ran").is_undefined(), "it ran");
    }
}

async fn a_block_that_does_not_change_keeps_its_nodes() {
    let text = RwSignal::new("one\n\ntw".to_owned());
    let stage = Stage::new(move |_| view! { <Prose text/> });
    let first = stage.one("p:first-of-type");
    text.set("one\n\ntwo *and* more".into());
    frame().await;
    assert_eq!(stage.text(), "onetwo and more");
    assert!(stage.one("p:first-of-type").is_same_node(Some(&first)), "its selection stays");
}

async fn a_number_out_of_range_is_told_beside_its_field_and_nothing_is_sent() {
    let stage = Stage::new(|_| view! { <Composer/> });
    let page = stage.page;
    page.hear(Event::Ready(backend()));
    for (name, typed, said) in [
        ("temperature", "100.5", "Temperature is \u{201c}100.5\u{201d}; it must be"),
        ("max_tokens", "0", "Longest answer is \u{201c}0\u{201d}; it must be"),
        ("top_p", "<b>", "Top p is \u{201c}<b>\u{201d}; it must be"),
    ] {
        let field = format!("#sampling-{name}");
        let before = page.sampling.with_untracked(|form| form.get(name).to_owned());
        stage.type_into("#composer", "a prompt");
        stage.type_into(&field, typed);
        dispatch(&stage.one("form"), "new Event('submit', { bubbles: true, cancelable: true })");
        frame().await;
        let status = page.status.get_untracked();
        assert!(status.starts_with("Not sent. ") && status.contains(said), "{status}");
        let shown = stage.one(&format!("{field}-hint")).text_content().unwrap_or_default();
        assert!(shown.contains(said), "{shown}");
        assert_eq!(stage.one(&field).get_attribute("aria-invalid").as_deref(), Some("true"));
        assert_eq!(document().active_element().map(|e| e.id()), Some(format!("sampling-{name}")));
        // What was sent before this would have been heard before it.
        page.send(&Command::Reopen);
        stage.expect_last(&Command::Reopen).await;
        let sent = stage.heard().iter().any(|command| matches!(command, Command::Submit { .. }));
        assert!(!sent && page.turns.with_untracked(Vec::is_empty), "{:?}", stage.heard());
        page.notices.set(Vec::new());
        stage.type_into(&field, &before);
        frame().await;
        assert_eq!(stage.one(&field).get_attribute("aria-invalid"), None);
    }
}

async fn keys_are_left_to_who_is_typing() {
    let stage = Stage::new(|page| {
        listen(page);
        view! { <Keys/><input id="typed"/><textarea id="composer"></textarea><div id="answer" tabindex="0" data-ask="7"></div> }
    });
    let page = stage.page;
    let press = |at: &str, name: &str| {
        drop(stage.one(at).focus());
        dispatch(&stage.one(at), &key(name))
    };
    for name in ["/", "?", "t"] {
        assert!(press("#typed", name), "{name} is typed");
    }
    let panes = (page.keys.get_untracked(), page.tab.get_untracked());
    assert_eq!(panes, (false, crate::page::state::Tab::Chat));
    press("#answer", "?");
    frame().await;
    assert_eq!((page.keys.get_untracked(), stage.count(".keys kbd")), (true, 6));
    press("#typed", "Escape");
    assert!(!page.keys.get_untracked(), "Escape closes it, also from a field");
    press("#answer", "Escape");
    stage.expect_last(&Command::Cancel { ask: AskId(7) }).await;
    assert!(!press("#answer", "/"), "the slash does not arrive in the prompt");
    frame().await;
    assert_eq!(document().active_element().map(|element| element.id()).as_deref(), Some("composer"));
}

async fn a_wish_for_a_lane_is_granted_once_it_is_known() {
    let (opened, active) = (RwSignal::new(None), RwSignal::new(None));
    let stage = Stage::new(move |page| open_on_demand(page.session, opened, active));
    let page = stage.page;
    let record = |id: &str, engine_id: u64| {
        serde_json::from_value(serde_json::json!({
            "schema": firstlight_engine::timeline::TIMELINE_SCHEMA, "id": id, "engine_id": engine_id,
            "model": { "name": "a", "sha256": null, "quantisation": "" },
            "clock": { "origin_unix_ms": 0, "resolution_ns": 1 },
            "stamps": {}, "residency": [], "attempts": [], "preemptions": 0, "token_at": [], "token_step": [],
            "tokens": firstlight_engine::timeline::TokenCounts::default(),
        }))
        .expect("it is a record")
    };
    page.lane.set(Some("b".into()));
    frame().await;
    assert_eq!((opened.get_untracked(), page.lane.get_untracked().as_deref()), (None, Some("b")));
    let live =
        crate::protocol::Live { timelines: vec![record("a", 1), record("b", 2)], ..Default::default() };
    page.hear(Event::Live(live));
    frame().await;
    assert_eq!(
        (opened.get_untracked(), active.get_untracked()),
        (Some(2), Some(2)),
        "as soon as it is known"
    );
    opened.set(None);
    page.hear(Event::Sealed { timeline: Box::new(record("b", 2)) });
    frame().await;
    assert_eq!(opened.get_untracked(), None, "once");
    page.lane.set(Some("b".into()));
    frame().await;
    assert_eq!(opened.get_untracked(), Some(2), "and of one that has ended");
}

async fn what_is_to_be_kept_is_kept_and_parameters_are_read() {
    js("localStorage.clear()");
    assert_eq!(files::kept("claim"), None);
    files::keep("claim", "a value");
    assert_eq!(files::kept("claim").as_deref(), Some("a value"));
    js("localStorage.clear()");
    js("history.replaceState(null, '', '?model=a%20b&empty=')");
    let read = ["model", "empty", "none"].map(files::parameter);
    js("history.replaceState(null, '', '?')");
    assert_eq!(read, [Some("a b".into()), Some(String::new()), None]);
}

async fn a_file_is_given_with_its_name_and_all_of_its_text() {
    js("globalThis.clicked = []; globalThis.click = HTMLAnchorElement.prototype.click;
        HTMLAnchorElement.prototype.click = function () { clicked.push(this.download, fetch(this.href).then((a) => a.text())); }");
    let text = "{\"\u{e9}\u{1f600}\": 1}".repeat(10_000);
    files::download("a name.json", &text, "application/json");
    let got = js_later("Promise.all(clicked)").await;
    js("HTMLAnchorElement.prototype.click = globalThis.click");
    let got: Vec<String> = js_sys::Array::from(&got).iter().filter_map(|part| part.as_string()).collect();
    assert!(got == ["a name.json".to_owned(), text], "{} parts", got.len());
}
