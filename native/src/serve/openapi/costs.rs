//! The schema of `/v1/costs`: a model, and what its steps cost on the adapter.
//!
//! Invariant: the names are those of `engine::budget` and `engine::costs`.

use serde_json::{Value, json};

use super::schema::{about, answer, count, figure, flag, list, named, text, with, word};

pub(super) fn components() -> Vec<(&'static str, Value)> {
    let amount = || with(figure(), json!({ "minimum": 0 }));
    let classes = |sentence: &str| about(sentence, list(named("ClassCost")));
    let measured = answer(
        [
            ("model", named("ModelFigures")),
            ("costs", named("StepCosts")),
            ("chunk_tokens", about("Tokens of a prompt that one step takes at most.", count())),
            ("kv_pool_bytes", about("Bytes for keys and values.", amount())),
        ],
        [],
    );
    let model = answer(
        [
            ("name", text()),
            ("params", about("Weights that each token is multiplied with.", amount())),
            ("weight_bytes", amount()),
            ("head_bytes", about("Those of the output head, which are among them.", amount())),
            ("layers", count()),
            ("attention_width", about("Elements of all query heads together.", count())),
            ("kv_bytes_a_token", about("In all layers.", amount())),
            ("max_context", count()),
        ],
        [],
    );
    let costs = answer(
        [
            ("schema", word(&[firstlight_engine::costs::SCHEMA])),
            ("model", text()),
            ("adapter", text()),
            ("activations", text()),
            ("kv_cache", text()),
            ("runs_ahead", flag()),
            ("tiles", about("In what the products take rows.", list(named("RowTile")))),
            ("rows", classes("All layers of a step of so many rows, without attention and head.")),
            ("head", classes("The head, for so many sampled rows.")),
            ("decode_attention", classes("1,024 attended positions in a step of so many decode rows.")),
            ("prompt_attention", classes("The same of rows of prompts.")),
            ("host", classes("What the engine's loop adds, for so many sampled rows.")),
            ("dispatches", count()),
            ("dispatch_ns", count()),
        ],
        [("correction", about("How they were scaled to recorded steps.", json!({ "type": "object" })))],
    );
    vec![
        ("Costs", answer([], [("stack", about("Absent where nobody has measured it.", named("Stack")))])),
        ("Stack", answer([("measured", measured)], [])),
        ("ModelFigures", model),
        ("StepCosts", costs),
        ("RowTile", answer([("min_rows", count()), ("tile_rows", count())], [])),
        ("ClassCost", answer([("rows", count()), ("ns", count())], [])),
    ]
}
