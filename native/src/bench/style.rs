//! How a result is drawn: with colours and blocks on a terminal that has them, in plain letters everywhere else.
//!
//! Invariant: what colour tells, a letter or a shade tells too.

use std::io::IsTerminal;

/// What a stretch of a bar stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stretch {
    /// Not yet seen by a pass.
    Inbox,
    /// Before the first admission.
    Queue,
    /// What an eviction threw away, and waiting again after it.
    Waste,
    /// The prompt, up to the first token.
    Prefill,
    /// The tokens after the first.
    Decode,
}

impl Stretch {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inbox => "inbox",
            Self::Queue => "queue",
            Self::Waste => "waste",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    fn shade(self) -> char {
        match self {
            Self::Inbox => '\u{b7}',
            Self::Queue => '\u{2591}',
            Self::Waste => '\u{2573}',
            Self::Prefill => '\u{2592}',
            Self::Decode => '\u{2588}',
        }
    }

    fn letter(self) -> char {
        match self {
            Self::Inbox => '.',
            Self::Queue => '-',
            Self::Waste => 'x',
            Self::Prefill => '=',
            Self::Decode => '#',
        }
    }

    fn colour(self) -> u8 {
        match self {
            Self::Inbox => 33,
            Self::Queue => 31,
            Self::Waste => 35,
            Self::Prefill => 34,
            Self::Decode => 32,
        }
    }
}

/// What the place that a result is written to can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Blocks and shades.
    pub blocks: bool,
    /// Colours.
    pub colours: bool,
}

impl Style {
    /// Letters only.
    pub const PLAIN: Self = Self { blocks: false, colours: false };

    /// Of standard output: a file or a pipe gets letters, a terminal what it can show.
    pub fn of_stdout() -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self::of(is_terminal, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// Of a terminal, or of something else, in an environment.
    pub fn of(is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let is_dumb = variable("TERM").is_some_and(|name| name == "dumb");
        // The first of these that is set is the one that counts; where none is, terminals read UTF-8 today.
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(&variable);
        let is_utf8 = locale.is_none_or(|name| {
            let name = name.to_ascii_lowercase();
            name.contains("utf-8") || name.contains("utf8")
        });
        let draws = is_terminal && !is_dumb;
        Self { blocks: draws && is_utf8, colours: draws && variable("NO_COLOR").is_none() }
    }

    /// `cells` cells of a stretch.
    pub fn stretch(self, stretch: Stretch, cells: usize) -> String {
        let cell = if self.blocks { stretch.shade() } else { stretch.letter() };
        self.coloured(stretch.colour(), &cell.to_string().repeat(cells))
    }

    /// `cells` cells of a bar that has no stretches.
    pub fn bar(self, cells: usize) -> String {
        let cell = if self.blocks { "\u{2588}" } else { "#" };
        self.coloured(36, &cell.repeat(cells))
    }

    /// A heading.
    pub fn heading(self, text: &str) -> String {
        self.coloured(1, text)
    }

    /// What belongs to a figure and is not the figure.
    pub fn quiet(self, text: &str) -> String {
        self.coloured(2, text)
    }

    fn coloured(self, code: u8, text: &str) -> String {
        if self.colours && !text.is_empty() {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(is_terminal: bool, variables: &[(&str, &str)], expected: Style) {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(Style::of(is_terminal, variable), expected, "{is_terminal} {variables:?}");
    }

    #[test]
    fn only_a_terminal_that_can_gets_blocks_and_colours() {
        let (all, plain) = (Style { blocks: true, colours: true }, Style::PLAIN);
        check(true, &[("LANG", "de_DE.UTF-8")], all);
        check(true, &[], all);
        check(false, &[("LANG", "en_US.UTF-8")], plain);
        check(true, &[("TERM", "dumb")], plain);
        check(true, &[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")], Style { blocks: false, colours: true });
        check(true, &[("NO_COLOR", "1")], Style { blocks: true, colours: false });
        assert_eq!(plain.stretch(Stretch::Queue, 3), "---");
        assert_eq!(plain.heading("a"), "a");
        assert_eq!(all.stretch(Stretch::Decode, 2), "\u{1b}[32m\u{2588}\u{2588}\u{1b}[0m");
        assert_eq!(all.bar(0), "");
    }
}
