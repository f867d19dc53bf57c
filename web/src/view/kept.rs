//! Texts by name, the oldest forgotten when there are too many.

use std::collections::VecDeque;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Kept(VecDeque<(String, String)>);

/// Texts that are kept; a page may stay open for days.
const MOST: usize = 2048;

impl Kept {
    /// Keeps `text` under `name`, instead of what stood there.
    pub fn keep(&mut self, name: &str, text: &str) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => text.clone_into(old),
            None => self.0.push_back((name.to_owned(), text.to_owned())),
        }
        if self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// What is kept under `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_replaced_and_the_oldest_is_forgotten() {
        let mut kept = Kept::default();
        kept.keep("a", "1");
        kept.keep("a", "2");
        assert_eq!(kept.get("a"), Some("2"));
        (0..MOST).for_each(|name| kept.keep(&name.to_string(), "x"));
        assert_eq!((kept.get("a"), kept.get("0"), kept.0.len()), (None, Some("x"), MOST));
    }
}
