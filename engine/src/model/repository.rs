//! Which files of a published repository make one model.
//!
//! It fetches nothing. Invariant: a name that could leave its folder is never chosen.

/// Names the shards of a checkpoint in several files.
pub const INDEX_NAME: &str = "model.safetensors.index.json";

/// What a safetensors model has beside its weights, where the repository has it.
const COMPANIONS: [&str; 7] = [
    INDEX_NAME,
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// Why a repository gives no one model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoModel {
    /// Nothing that this engine reads.
    #[error("it holds neither config.json with .safetensors nor a .gguf file; choose another repository")]
    Nothing,
    /// More than one, of which one has to be named.
    #[error("it holds {} GGUF files ({}); name one of them", .0.len(), .0.join(", "))]
    Several(Vec<String>),
}

/// Whether a file name from outside stays inside the folder it is put into.
pub fn is_plain_file(name: &str) -> bool {
    let fine = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+= ".contains(&byte))
    };
    name.len() <= 200 && name.split('/').all(fine)
}

/// The files that make a model: safetensors with their companions, or the one GGUF file.
///
/// # Errors
/// None of these, or several GGUF files.
pub fn files_of_model(names: &[String]) -> Result<Vec<String>, NoModel> {
    let ending = |ending: &str| -> Vec<String> {
        let wanted = |name: &&String| name.ends_with(ending) && is_plain_file(name) && !name.contains('/');
        names.iter().filter(wanted).cloned().collect()
    };
    let mut shards = ending(".safetensors");
    // Some repositories hold the same weights a second time under another name; the library's own begin with `model`.
    if shards.iter().any(|name| name.starts_with("model")) {
        shards.retain(|name| name.starts_with("model"));
    }
    if !shards.is_empty() && names.iter().any(|name| name == "config.json") {
        let companions = COMPANIONS.iter().map(|name| (*name).to_owned()).filter(|name| names.contains(name));
        return Ok(companions.chain(shards).collect());
    }
    let mut ggufs = ending(".gguf");
    ggufs.sort_unstable();
    match ggufs.len() {
        0 => Err(NoModel::Nothing),
        1 => Ok(ggufs),
        _ => Err(NoModel::Several(ggufs)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], expected: Option<&[&str]>) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let got = files_of_model(&names).ok();
        let got: Option<Vec<&str>> = got.as_ref().map(|files| files.iter().map(String::as_str).collect());
        assert_eq!(got.as_deref(), expected, "{names:?}");
    }

    #[test]
    fn a_repository_gives_one_model() {
        check(
            &["README.md", "config.json", "tokenizer.json", "model.safetensors", "onnx/x.safetensors"],
            Some(&["config.json", "tokenizer.json", "model.safetensors"]),
        );
        check(&["x.Q8_0.gguf", "README.md"], Some(&["x.Q8_0.gguf"]));
        check(&["a.gguf", "b.gguf"], None);
        check(&["../a.gguf"], None);
        check(&["README.md"], None);
        check(&["model.safetensors"], None);
    }
}
