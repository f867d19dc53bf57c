//! The page's address and other addresses that a person types.
//!
//! It never fetches anything. Invariant: what cannot be used is told in a sentence, and the page goes on without it.

use super::settings::{ENGINE, EngineForm};
use crate::protocol::KvCache;

/// What the page's address asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// `server`: connect to it.
    pub server: Option<String>,
    /// `replay`: play this recording.
    pub replay: Option<String>,
    /// `model`: open this file beside the page.
    pub model: Option<String>,
    /// `hub`: where the hub is looked for.
    pub hub: Option<String>,
    /// `slots`, `batch_tokens` and so on.
    pub engine: EngineForm,
    /// What could not be used.
    pub refused: Vec<String>,
}

impl Query {
    /// Reads the parameters; `get` gives a parameter's value by its name.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Self {
        let mut query = Self { model: get("model").filter(|model| !model.is_empty()), ..Self::default() };
        let mut address = |name: &str| {
            let given = get(name).filter(|value| !value.is_empty())?;
            let read = web_address(&given);
            read.map_err(|sentence| query.refused.push(format!("?{name}= is ignored: {sentence}"))).ok()
        };
        (query.server, query.replay, query.hub) =
            (address("server"), relative(&get, "replay"), address("hub"));
        for field in ENGINE {
            let Some(value) = get(field.name) else { continue };
            let mut tried = query.engine.clone();
            tried.set(field.name, &value);
            match tried.read() {
                Ok(_) => query.engine = tried,
                Err(error) => query.refused.push(format!("?{}= is ignored: {error}", field.name)),
            }
        }
        const ON: &[&str] = &["on", "1", "true"];
        const OFF: &[&str] = &["off", "0", "false"];
        for (name, value, on, off) in [
            ("prefix_cache", &mut query.engine.prefix_cache, ON, OFF),
            ("default_limits", &mut query.engine.default_limits, ON, OFF),
            // The words of the program's --activations.
            ("activations", &mut query.engine.i8_activations, &["i8"], &["f32", "auto"]),
        ] {
            match get(name).as_deref() {
                None => {}
                Some(given) if on.contains(&given) => *value = true,
                Some(given) if off.contains(&given) => *value = false,
                Some(other) => query.refused.push(format!(
                    "?{name}={} is ignored: it must be {} or {}.",
                    shown(other),
                    on[0],
                    off[0]
                )),
            }
        }
        match get("kv").map(|given| (KvCache::ALL.into_iter().find(|kv| kv.name() == given), given)) {
            None => {}
            Some((Some(kv), _)) => query.engine.kv = kv,
            Some((None, other)) => query
                .refused
                .push(format!("?kv={} is ignored: it must be f32, f16, q8 or auto.", shown(&other))),
        }
        query
    }
}

/// A recording may lie beside the page.
fn relative(get: &impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    get(name).filter(|value| !value.is_empty())
}

/// An address of a server or file: `https://` is put before one that has no scheme, `http://` before this machine's own.
///
/// # Errors
/// It is empty, has spaces in it or another scheme; a sentence.
pub fn web_address(typed: &str) -> Result<String, String> {
    let typed = typed.trim();
    if typed.is_empty() {
        return Err("Give an address, like http://127.0.0.1:8080.".to_owned());
    }
    if typed.contains(char::is_whitespace) {
        return Err(format!("\u{201c}{}\u{201d} has spaces in it; an address has none.", shown(typed)));
    }
    let (scheme, rest) = match typed.split_once("://") {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None => {
            let host = typed.split(['/', ':']).next().unwrap_or_default();
            let own = ["localhost", "127.0.0.1", "0.0.0.0"].contains(&host);
            (if own { "http" } else { "https" }.to_owned(), typed)
        }
    };
    if !["http", "https"].contains(&scheme.as_str()) {
        return Err(format!(
            "\u{201c}{}\u{201d} is no web address; it must begin with http:// or https://.",
            shown(typed)
        ));
    }
    if rest.split('/').next().unwrap_or_default().is_empty() {
        return Err(format!(
            "\u{201c}{}\u{201d} names no host; give one, like http://127.0.0.1:8080.",
            shown(typed)
        ));
    }
    Ok(format!("{scheme}://{rest}"))
}

/// OWNER/REPO or OWNER/REPO:file.gguf.
///
/// # Errors
/// It is neither; a sentence.
pub fn hub_name(typed: &str) -> Result<String, String> {
    let typed = typed.trim();
    let typed = typed.strip_prefix("https://huggingface.co/").unwrap_or(typed).trim_end_matches('/');
    let (repo, file) = match typed.split_once(':') {
        Some((repo, file)) => (repo, Some(file)),
        None => (typed, None),
    };
    let part = |part: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && part.len() <= 96 && part.chars().all(fits)
    };
    let named = repo.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name));
    if !named {
        return Err(format!(
            "\u{201c}{}\u{201d} is no model of the hub; write OWNER/REPO, or OWNER/REPO:file.gguf.",
            shown(typed)
        ));
    }
    if file.is_some_and(|file| {
        !file.to_ascii_lowercase().ends_with(".gguf") || file.contains(char::is_whitespace)
    }) {
        return Err(format!(
            "\u{201c}{}\u{201d} is no GGUF file; what follows the colon must end in .gguf.",
            shown(file.unwrap_or_default())
        ));
    }
    Ok(typed.to_owned())
}

/// Whether files make a model: one GGUF file, or safetensors with their json files.
///
/// # Errors
/// What is missing; a sentence.
pub fn model_files(names: &[String]) -> Result<String, String> {
    let ends = |ending: &str| names.iter().filter(|name| name.to_ascii_lowercase().ends_with(ending)).count();
    let (gguf, weights) = (ends(".gguf"), ends(".safetensors"));
    match (gguf, weights) {
        (1, 0) => Ok(names
            .iter()
            .find(|name| name.to_ascii_lowercase().ends_with(".gguf"))
            .cloned()
            .unwrap_or_default()),
        (0, 0) => Err(format!(
            "{} is no model; give one .gguf file, or .safetensors files together with config.json and tokenizer.json.",
            names.first().map_or("Nothing".to_owned(), |name| format!("\u{201c}{}\u{201d}", shown(name)))
        )),
        (0, _) => {
            let missing = ["config.json", "tokenizer.json"]
                .into_iter()
                .filter(|file| !names.iter().any(|name| name == file));
            let missing: Vec<_> = missing.collect();
            match missing.is_empty() {
                true => Ok(format!("{weights} safetensors file{}", if weights == 1 { "" } else { "s" })),
                false => Err(format!(
                    "{} is missing; drop it together with the safetensors.",
                    missing.join(" and ")
                )),
            }
        }
        (gguf, _) => Err(format!(
            "{gguf} GGUF and {weights} safetensors files are more than one model; give one GGUF file."
        )),
    }
}

/// The beginning of what was typed.
fn shown(typed: &str) -> String {
    let mut shown: String = typed.chars().take(60).collect();
    if shown.len() < typed.len() {
        shown.push('\u{2026}');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_and_a_host() {
        let check = |typed: &str, expected: Result<&str, &str>| {
            let got = web_address(typed);
            match expected {
                Ok(address) => assert_eq!(got.as_deref(), Ok(address), "{typed}"),
                Err(part) => assert!(got.as_ref().is_err_and(|s| s.contains(part)), "{typed}: {got:?}"),
            }
        };
        check(" http://127.0.0.1:8080/ ", Ok("http://127.0.0.1:8080/"));
        check("localhost:8080", Ok("http://localhost:8080"));
        check("example.org/v", Ok("https://example.org/v"));
        check("HTTPS://example.org", Ok("https://example.org"));
        check("", Err("Give an address"));
        check("a b", Err("has spaces"));
        check("javascript://x", Err("no web address"));
        check("http:///x", Err("names no host"));
    }

    #[test]
    fn a_hub_s_name_has_an_owner() {
        let check = |typed: &str, expected: Result<&str, &str>| {
            let got = hub_name(typed);
            match expected {
                Ok(name) => assert_eq!(got.as_deref(), Ok(name), "{typed}"),
                Err(part) => assert!(got.as_ref().is_err_and(|s| s.contains(part)), "{typed}: {got:?}"),
            }
        };
        check("HuggingFaceTB/SmolLM2-135M-Instruct", Ok("HuggingFaceTB/SmolLM2-135M-Instruct"));
        check("a/b:c-Q4_1.gguf", Ok("a/b:c-Q4_1.gguf"));
        check("https://huggingface.co/a/b/", Ok("a/b"));
        check("a", Err("OWNER/REPO"));
        check("a/b/c", Err("OWNER/REPO"));
        check("a/b:c.bin", Err("must end in .gguf"));
        check("", Err("OWNER/REPO"));
    }

    #[test]
    fn files_make_one_model() {
        let check = |names: &[&str], expected: Result<&str, &str>| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let got = model_files(&names);
            match expected {
                Ok(what) => assert_eq!(got.as_deref(), Ok(what), "{names:?}"),
                Err(part) => assert!(got.as_ref().is_err_and(|s| s.contains(part)), "{names:?}: {got:?}"),
            }
        };
        check(&["a.GGUF"], Ok("a.GGUF"));
        check(&["a.safetensors", "config.json", "tokenizer.json"], Ok("1 safetensors file"));
        check(&["a.safetensors", "config.json"], Err("tokenizer.json is missing"));
        check(&["a.gguf", "b.gguf"], Err("more than one"));
        check(&["photo.png"], Err("is no model"));
        check(&[], Err("Nothing is no model"));
    }

    #[test]
    fn the_page_s_address_is_read_and_what_is_wrong_in_it_is_told() {
        let read = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, String)> =
                pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
            Query::read(|name| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()))
        };
        assert_eq!(read(&[]), Query::default());
        let all = read(&[
            ("server", "localhost:1"),
            ("model", "m.gguf"),
            ("replay", "r.json"),
            ("hub", "http://h"),
            ("slots", "8"),
            ("prefix_cache", "off"),
            ("default_limits", "on"),
            ("activations", "i8"),
            ("kv", "q8"),
        ]);
        assert_eq!(all.server.as_deref(), Some("http://localhost:1"));
        assert_eq!(all.hub.as_deref(), Some("http://h"));
        assert_eq!((all.model.as_deref(), all.replay.as_deref()), (Some("m.gguf"), Some("r.json")));
        assert_eq!(all.engine.get("slots"), "8");
        assert!(!all.engine.prefix_cache && all.engine.default_limits && all.engine.i8_activations);
        assert_eq!(all.refused, [""; 0]);
        assert_eq!(all.engine.kv, KvCache::Q8);
        assert_eq!(read(&[("activations", "f32"), ("kv", "auto")]), read(&[]));
        let other = read(&[("activations", "bf16"), ("kv", "i8")]);
        assert_eq!(
            other.refused,
            [
                "?activations=bf16 is ignored: it must be i8 or f32.",
                "?kv=i8 is ignored: it must be f32, f16, q8 or auto."
            ]
        );
        let wrong =
            read(&[("server", "ftp://x"), ("slots", "0"), ("batch_tokens", "16"), ("prefix_cache", "maybe")]);
        assert_eq!(wrong.server, None);
        assert_eq!((wrong.engine.get("slots"), wrong.engine.get("batch_tokens")), ("4", "16"));
        assert_eq!(wrong.refused.len(), 3, "{:?}", wrong.refused);
    }
}
