//! The model's own template turns a conversation into the text that the model was trained on.
//!
//! Templates come from model files, so they are not trusted: fuel bounds their time and memory, and their output is
//! bounded too. One thing escapes both: a single operation (comparing, joining with `~`, sorting) on a list that holds
//! another many times, which holds another many times, and so on. A host that takes models from strangers prepares
//! requests where it can stop them. It never reads a clock: `strftime_now` prints the time that the host passed in.
//! Invariant: what comes back is a text of bounded length or a sentence.

use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, from_args};
use minijinja::{Environment, Error, ErrorKind, State, context};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::calendar::strftime;
use crate::request::RejectReason;

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, or what the template knows besides.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// What a template is rendered with.
#[derive(Clone, Copy, Debug)]
pub struct TemplateInput<'a> {
    /// The conversation, oldest first.
    pub messages: &'a [ChatMessage],
    /// Text of the BOS token; empty where there is none.
    pub bos_token: &'a str,
    /// Text of the EOS token; empty where there is none.
    pub eos_token: &'a str,
    /// The time that `strftime_now` prints, in UTC.
    pub now_unix_seconds: u64,
}

/// A compiled template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

const NAME: &str = "chat_template";
/// Published templates have up to 20 KiB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
/// The longest text a conversation may become: four times the longest input.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// Instructions, and data at 64 bytes each: about 128 MiB and about a second at most. A long conversation in a long
/// template takes some tens of thousands.
const FUEL: u64 = 2_000_000;
/// Templates recurse over tool schemas, a few levels deep; each level of a macro counts several times.
const RECURSION: usize = 200;

impl ChatTemplate {
    /// Compiles a Jinja template, as model cards write them. Refuses one that is too long or does not compile.
    pub fn new(source: &str) -> Result<Self, RejectReason> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(RejectReason::Preparation(format!(
                "the model's chat template has {} bytes, at most {MAX_SOURCE_BYTES} are taken; send the text as it is (--raw)",
                source.len()
            )));
        }
        let mut environment = Environment::new();
        // As HuggingFace transformers sets them; a template relies on it for its line ends.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| sentence(&e))?);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION);
        environment.set_unknown_method_callback(python_method);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, without_generation_tags(source)).map_err(|e| sentence(&e))?;
        Ok(Self { environment })
    }

    /// The conversation as text, up to where the model is to answer.
    pub fn render(&self, input: &TemplateInput<'_>) -> Result<String, RejectReason> {
        let template = self.environment.get_template(NAME).map_err(|e| sentence(&e))?;
        let now = input.now_unix_seconds;
        let strftime_now = Value::from_function(move |format: &str| {
            strftime(format, now).map_err(|e| Error::new(ErrorKind::InvalidOperation, e))
        });
        let messages: Vec<Value> = (input.messages.iter())
            .map(|m| context! { role => m.role.as_str(), content => m.content.as_str() })
            .collect();
        let context = context! {
            messages => messages,
            bos_token => input.bos_token,
            eos_token => input.eos_token,
            add_generation_prompt => true,
            tools => Value::from(()),
            documents => Value::from(()),
            strftime_now => strftime_now,
        };
        let mut output = Bounded { bytes: Vec::new(), limit: MAX_OUTPUT_BYTES };
        template.render_captured_to(context, &mut output).map(drop).map_err(|e| sentence(&e))?;
        String::from_utf8(output.bytes)
            .map_err(|e| RejectReason::Preparation(format!("the chat template wrote no text: {e}")))
    }
}

/// One sentence for whoever sent the conversation.
fn sentence(error: &Error) -> RejectReason {
    let what = match error.kind() {
        ErrorKind::OutOfFuel => format!("it takes more than {FUEL} steps"),
        ErrorKind::WriteFailure => format!("it writes more than {MAX_OUTPUT_BYTES} bytes"),
        kind => match (error.detail(), error.line()) {
            (Some(detail), Some(line)) => format!("{detail} (line {line})"),
            (Some(detail), None) => detail.to_owned(),
            (None, _) => kind.to_string(),
        },
    };
    RejectReason::Preparation(format!(
        "the model's chat template cannot render this conversation: {what}; change the messages or send the text as it is (--raw)"
    ))
}

/// Grows up to a limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            return Err(io::Error::other("the output is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Python's methods: minijinja's own set, and the two that are newer than it.
fn python_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        match method {
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False, indent=indent)` spells it, which is what models have seen;
/// Jinja's own filter would escape HTML characters.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Accepted and without effect: text is never escaped, and these are Python's defaults.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut output = Bounded { bytes: Vec::new(), limit: MAX_OUTPUT_BYTES };
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut output, OneLine)),
        Some(width) => {
            let spaces = " ".repeat(width.min(16));
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut output, formatter))
        }
    };
    written.map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("tojson: {e}")))?;
    let text = String::from_utf8(output.bytes);
    text.map(Value::from).map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))
}

/// A space after each comma and colon.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// `{% generation %}` ... `{% endgeneration %}` marks what training looks at. An `if true` has the same effect on the
/// text, white space included, and Jinja knows it.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let word = tag[2..end].trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag.replace(word, "if true")),
            "endgeneration" => out.push_str(&tag.replace(word, "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
