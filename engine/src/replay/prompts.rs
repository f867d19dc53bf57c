//! Prompts that nobody wrote, which begin alike where a recording says that they did.
//!
//! Invariant: two prompts have the same tokens exactly as far as they were made to share them.

/// The token that all answers consist of. No prompt has one of its own.
pub(super) const ANSWER: u32 = 0;

/// A prompt as stretches of the same token: (which, up to which position).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt(Vec<(u32, u32)>);

impl Prompt {
    /// `len` tokens of `owner` alone.
    pub(super) fn own(owner: u32, len: u32) -> Self {
        Self(vec![(owner + 1, len)])
    }

    /// `len` tokens, the first `shared` of them as they stand here and in the answer to this; the others are `owner`'s.
    pub(super) fn continued(&self, shared: u32, owner: u32, len: u32) -> Self {
        let mut stretches: Vec<(u32, u32)> = Vec::with_capacity(self.0.len() + 2);
        let mut from = 0;
        for (token, to) in self.0.iter().copied().chain([(ANSWER, u32::MAX)]) {
            if from < shared && from < to {
                stretches.push((token, to.min(shared)));
            }
            from = to;
        }
        if shared < len {
            stretches.push((owner + 1, len));
        }
        Self(stretches)
    }

    /// Its length.
    pub(super) fn len(&self) -> u32 {
        self.0.last().map_or(0, |(_, to)| *to)
    }

    /// Its token ids.
    pub(super) fn tokens(&self) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(self.len() as usize);
        for &(token, to) in &self.0 {
            tokens.resize(to as usize, token);
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_what_they_were_made_to_share() {
        let first = Prompt::own(0, 4);
        let second = first.continued(3, 1, 5);
        let check = |prompt: &Prompt, expected: &[u32]| assert_eq!(prompt.tokens(), expected);
        check(&first, &[1, 1, 1, 1]);
        check(&second, &[1, 1, 1, 2, 2]);
        check(&second.continued(2, 2, 3), &[1, 1, 3]);
        check(&second.continued(4, 2, 6), &[1, 1, 1, 2, 3, 3]);
        check(&second.continued(5, 2, 5), &[1, 1, 1, 2, 2]);
        check(&second.continued(0, 2, 1), &[3]);
        // Another turn of a conversation: the prompt, what was answered, and then something new.
        check(&first.continued(6, 2, 8), &[1, 1, 1, 1, ANSWER, ANSWER, 3, 3]);
        check(&Prompt::default(), &[]);
    }
}
