//! Fields with their label, their hint and what is wrong with them.
//!
//! Invariant: a field says what is wrong beside itself and to screen readers, never in a dialog.

use leptos::prelude::*;

use crate::view::settings::Field;

/// A field of one line.
#[component]
pub fn TextField(
    /// Its element.
    id: String,
    /// What it is called.
    label: &'static str,
    /// What may stand in it.
    #[prop(into)]
    hint: String,
    /// `text`, `url`, `password`.
    #[prop(default = "text")]
    kind: &'static str,
    /// How its keyboard looks on a phone.
    #[prop(default = "text")]
    inputmode: &'static str,
    /// What stands in it.
    #[prop(into)]
    value: Signal<String>,
    /// Hears what is typed.
    on_input: Callback<String>,
    /// What is wrong with it.
    #[prop(into)]
    error: Signal<Option<String>>,
) -> impl IntoView {
    let hint_id = format!("{id}-hint");
    let (described, for_id) = (hint_id.clone(), id.clone());
    view! {
        <div class="field">
            <label for=for_id>{label}</label>
            <input
                id=id
                type=kind
                inputmode=inputmode
                autocomplete="off"
                spellcheck="false"
                prop:value=move || value.get()
                aria-describedby=described
                aria-invalid=move || error.with(Option::is_some).then_some("true")
                on:input=move |ev| on_input.run(event_target_value(&ev))
            />
            <p id=hint_id class="hint" class:wrong=move || error.with(Option::is_some)>
                {move || error.get().unwrap_or_else(|| hint.clone())}
            </p>
        </div>
    }
    .into_any()
}

/// A field of a form of settings.
pub fn setting(
    field: Field,
    prefix: &str,
    value: impl Fn() -> String + Send + Sync + 'static,
    on_input: impl Fn(String) + Send + Sync + 'static,
    error: impl Fn() -> Option<String> + Send + Sync + 'static,
) -> AnyView {
    view! {
        <TextField
            id=format!("{prefix}-{}", field.name)
            label=field.label
            hint=field.hint
            inputmode="decimal"
            value=Signal::derive(value)
            on_input=Callback::new(on_input)
            error=Signal::derive(error)
        />
    }
    .into_any()
}

/// A box to tick.
#[component]
pub fn Tick(
    /// What it says.
    label: &'static str,
    /// Whether it is ticked.
    #[prop(into)]
    ticked: Signal<bool>,
    /// Hears that it was.
    on_change: Callback<bool>,
) -> impl IntoView {
    view! {
        <label class="tick">
            <input
                type="checkbox"
                prop:checked=move || ticked.get()
                on:change=move |ev| on_change.run(event_target_checked(&ev))
            />
            <span>{label}</span>
        </label>
    }
    .into_any()
}
