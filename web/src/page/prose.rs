//! An answer's text as nodes.
//!
//! It never sets HTML: text becomes text. Invariant: a block that does not change keeps its nodes while the text grows.

use leptos::prelude::*;

use crate::view::markdown::{Block, Span, blocks};

/// The text, block by block.
#[component]
pub fn Prose(
    /// What it is.
    text: RwSignal<String>,
) -> impl IntoView {
    let parsed = Memo::new(move |_| text.with(|text| blocks(text)));
    let numbered = move || parsed.get().into_iter().enumerate().collect::<Vec<_>>();
    view! { <For each=numbered key=|block| block.clone() let((_, block))>{node(block)}</For> }.into_any()
}

fn node(block: Block) -> AnyView {
    match block {
        Block::Paragraph(said) => view! { <p>{inline(said)}</p> }.into_any(),
        // The page has headings of its own: those of an answer are none of its outline.
        Block::Heading(_, said) => view! { <p class="heading">{inline(said)}</p> }.into_any(),
        Block::Code { language, text } => {
            let label = if language.is_empty() { "Code".to_owned() } else { format!("Code: {language}") };
            view! { <pre tabindex="0" role="group" aria-label=label><code>{text}</code></pre> }.into_any()
        }
        Block::List { start, items } => {
            let items = items.into_iter().map(|(depth, said)| {
                view! { <li class=format!("depth-{depth}")>{inline(said)}</li> }
            });
            match start {
                Some(start) => view! { <ol start=start>{items.collect_view()}</ol> }.into_any(),
                None => view! { <ul>{items.collect_view()}</ul> }.into_any(),
            }
        }
    }
}

fn inline(spans: Vec<Span>) -> Vec<AnyView> {
    let node = |span| match span {
        Span::Text(said) => said.into_any(),
        Span::Bold(said) => view! { <strong>{said}</strong> }.into_any(),
        Span::Italic(said) => view! { <em>{said}</em> }.into_any(),
        Span::Code(said) => view! { <code>{said}</code> }.into_any(),
    };
    spans.into_iter().map(node).collect()
}
