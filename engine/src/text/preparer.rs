//! From what a user sent to the prompt's token ids, or to the reason why not.
//!
//! It never waits, and keeps nothing between calls: any thread may prepare any request. Invariant: a prompt that it
//! gives out is not empty, fits the context with room for one token, and has only ids that the model knows.

use std::sync::Arc;

use super::chat_template::{ChatMessage, ChatTemplate, TemplateInput};
use super::quoting::{MarkedText, Quoter, Strength};
use super::tokenizer::{SpecialTokens, Tokenizer};
use crate::clock::Clock;
use crate::error::LoadError;
use crate::request::{HostStamps, RejectReason};

/// What a user sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptInput {
    /// Text as it is: special tokens in it are parsed, none is added.
    Raw(String),
    /// A conversation, for the model's chat template.
    Chat(Vec<ChatMessage>),
    /// Token ids.
    Ids(Vec<u32>),
}

/// How to read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrepareOptions {
    /// Special tokens that a message holds are parsed too, not only the template's own.
    pub parse_special: bool,
    /// The time for templates that print it, in seconds since 1970.
    pub now_unix_seconds: u64,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// At least one id, each below the model's vocabulary size.
    pub prompt: Vec<u32>,
    /// What the chat template wrote.
    pub rendered: Option<String>,
}

/// A model's text front end.
#[derive(Debug)]
pub struct Preparer {
    text: Option<TextSide>,
    vocab_size: u32,
    max_model_len: u32,
    /// What no prompt that fits can exceed: the context full of the longest token.
    max_prompt_bytes: usize,
}

/// Markers are longer than many a token, and a normaliser may shorten a text by a third.
const MIN_LONGEST_TOKEN: usize = 16;

#[derive(Debug)]
struct TextSide {
    tokenizer: Arc<Tokenizer>,
    /// A template that does not compile is an answer to a chat, and no obstacle to the rest.
    template: Result<ChatTemplate, RejectReason>,
    quoter: Quoter,
}

impl Preparer {
    /// The most bytes of text in one request, all messages together.
    pub const MAX_TEXT_BYTES: usize = 4 << 20;
    /// The most messages in one conversation.
    pub const MAX_MESSAGES: usize = 4096;
    /// The most bytes in a message's role.
    pub const MAX_ROLE_BYTES: usize = 64;

    /// `vocab_size` is the model's, `max_model_len` the longest prompt and answer together, in tokens. Without a
    /// tokenizer only ids are taken.
    pub fn new(
        tokenizer: Option<Arc<Tokenizer>>,
        vocab_size: u32,
        max_model_len: u32,
    ) -> Result<Self, LoadError> {
        let longest = tokenizer.as_ref().map_or(0, |t| t.token_bytes().longest()).max(MIN_LONGEST_TOKEN);
        let max_prompt_bytes = longest.saturating_mul(max_model_len as usize);
        let text = tokenizer.map(TextSide::new).transpose()?;
        Ok(Self { text, vocab_size, max_model_len, max_prompt_bytes })
    }

    /// The tokenizer, where the model has one.
    pub fn tokenizer(&self) -> Option<&Arc<Tokenizer>> {
        self.text.as_ref().map(|text| &text.tokenizer)
    }

    /// Prepares one prompt and writes `preparing`, `templated` and `tokenised` into `stamps`; where there is no template
    /// (or no text), a stamp equals the one before it. On a refusal the stamps not reached stay as they were.
    ///
    /// # Errors
    /// The input is empty, no conversation, longer than the context, or nothing that this model can read.
    pub fn prepare(
        &self,
        input: PromptInput,
        options: &PrepareOptions,
        clock: &dyn Clock,
        stamps: &mut HostStamps,
    ) -> Result<Prepared, RejectReason> {
        stamps.preparing = clock.now();
        let prepared = match input {
            PromptInput::Ids(prompt) => {
                stamps.templated = stamps.preparing;
                stamps.tokenised = stamps.preparing;
                Prepared { prompt, rendered: None }
            }
            PromptInput::Raw(text) => {
                stamps.templated = stamps.preparing;
                check_text_bytes(text.len())?;
                self.check_prompt_bytes(text.len())?;
                let prompt = self.text_side()?.tokenizer.encode(&text, SpecialTokens::Parse)?;
                stamps.tokenised = clock.now();
                Prepared { prompt, rendered: None }
            }
            PromptInput::Chat(messages) => {
                let text_side = self.text_side()?;
                // What a template leaves out is bounded by the context too: a host may search all that was sent.
                self.check_prompt_bytes(check_messages(&messages)?)?;
                let marked = text_side.render(&messages, options)?;
                stamps.templated = clock.now();
                self.check_prompt_bytes(marked.text.len())?;
                let prompt = text_side.encode_chat(&marked)?;
                stamps.tokenised = clock.now();
                Prepared { prompt, rendered: Some(marked.text) }
            }
        };
        self.check_prompt(&prepared.prompt)?;
        Ok(prepared)
    }

    fn text_side(&self) -> Result<&TextSide, RejectReason> {
        self.text.as_ref().ok_or_else(|| {
            RejectReason::Preparation("the model has no tokenizer; give token ids (--ids)".to_owned())
        })
    }

    /// Tokenising takes hundreds of bytes of memory for each byte of text: what cannot fit is not tried.
    fn check_prompt_bytes(&self, bytes: usize) -> Result<(), RejectReason> {
        if bytes > self.max_prompt_bytes {
            return Err(RejectReason::PromptTooManyBytes {
                bytes,
                max_model_len: self.max_model_len,
                max_bytes: self.max_prompt_bytes,
            });
        }
        Ok(())
    }

    fn check_prompt(&self, prompt: &[u32]) -> Result<(), RejectReason> {
        if prompt.is_empty() {
            return Err(RejectReason::EmptyPrompt);
        }
        let prompt_len = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if prompt_len >= self.max_model_len {
            return Err(RejectReason::PromptTooLong { prompt_len, max_model_len: self.max_model_len });
        }
        match prompt.iter().find(|&&id| id >= self.vocab_size) {
            Some(&id) => Err(RejectReason::UnknownToken { id, vocab_size: self.vocab_size }),
            None => Ok(()),
        }
    }
}

impl TextSide {
    fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, LoadError> {
        let template = match tokenizer.chat_template() {
            Some(source) => ChatTemplate::new(source),
            None => Err(RejectReason::Preparation(
                "the model has no chat template; send the text as it is (--raw)".to_owned(),
            )),
        };
        let quoter = Quoter::new(tokenizer.special_texts(), tokenizer.chat_template().unwrap_or_default())
            .map_err(super::tokenizer::malformed)?;
        Ok(Self { tokenizer, template, quoter })
    }

    /// The conversation as text, with what users wrote marked under the strongest quoting that leaves the template's
    /// words as they would be without any.
    fn render(&self, messages: &[ChatMessage], options: &PrepareOptions) -> Result<MarkedText, RejectReason> {
        let template = self.template.as_ref().map_err(Clone::clone)?;
        let render = |messages: &[ChatMessage]| {
            template.render(&TemplateInput {
                messages,
                bos_token: self.tokenizer.bos_text(),
                eos_token: self.tokenizer.eos_text(),
                now_unix_seconds: options.now_unix_seconds,
            })
        };
        let truth = render(messages)?;
        if options.parse_special || !messages.iter().any(|m| self.quoter.concerns(&m.content)) {
            return Ok(MarkedText { text: truth, plain: Vec::new() });
        }
        let source = self.tokenizer.chat_template().unwrap_or_default();
        let texts = messages.iter().flat_map(|m| [m.role.as_str(), m.content.as_str()]);
        let quoting = self.quoter.begin(texts.chain([source]))?;
        let rendered = |strength| {
            let quote = |m: &ChatMessage| ChatMessage {
                role: m.role.clone(),
                content: quoting.quote(&m.content, strength),
            };
            let quoted: Vec<ChatMessage> = messages.iter().map(quote).collect();
            render(&quoted).map(|text| quoting.restore(&text))
        };
        match rendered(Strength::FirstCharacters) {
            Ok(marked) if marked.text == truth => Ok(marked),
            _ => rendered(Strength::AroundLiterals),
        }
    }

    /// A template may write BOS itself. Where it does not and the model asks for one, it is put in front.
    fn encode_chat(&self, marked: &MarkedText) -> Result<Vec<u32>, RejectReason> {
        let mut prompt = self.tokenizer.encode_marked(marked)?;
        match self.tokenizer.bos() {
            Some(bos) if self.tokenizer.adds_bos() && prompt.first() != Some(&bos) => prompt.insert(0, bos),
            _ => {}
        }
        Ok(prompt)
    }
}

fn check_text_bytes(bytes: usize) -> Result<(), RejectReason> {
    if bytes > Preparer::MAX_TEXT_BYTES {
        return Err(RejectReason::Preparation(format!(
            "the text has {bytes} bytes and at most {} are taken; shorten it",
            Preparer::MAX_TEXT_BYTES
        )));
    }
    Ok(())
}

/// The bytes of what the messages say.
fn check_messages(messages: &[ChatMessage]) -> Result<usize, RejectReason> {
    let refuse = |sentence: String| Err(RejectReason::Preparation(sentence));
    if messages.is_empty() {
        return refuse("the conversation is empty; send at least one message".to_owned());
    }
    if messages.len() > Preparer::MAX_MESSAGES {
        let most = Preparer::MAX_MESSAGES;
        return refuse(format!(
            "the conversation has {} messages and at most {most} are taken; leave out the oldest",
            messages.len()
        ));
    }
    for (i, ChatMessage { role, .. }) in messages.iter().enumerate() {
        // Templates put the role between the brackets of a special token.
        let named = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if role.is_empty() || role.len() > Preparer::MAX_ROLE_BYTES || !role.chars().all(named) {
            return refuse(format!(
                "the role of message {i} has {} bytes; it must be 1 to {} letters, digits, '_' or '-', such as \"user\"",
                role.len(),
                Preparer::MAX_ROLE_BYTES
            ));
        }
    }
    let bytes = messages.iter().map(|m| m.content.len()).sum();
    check_text_bytes(bytes)?;
    Ok(bytes)
}
