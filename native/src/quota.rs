//! What one caller may use a minute: requests, and tokens of prompts and answers.
//!
//! Both are leaky buckets that hold a minute's worth, kept as one instant each (GCRA: the instant at which the bucket is
//! full again). A request is taken when it comes. Tokens are taken when they are known: a prompt's when it has been
//! tokenised and handed to the engine, an answer's one by one as they are made; so they may run into debt, and whoever has
//! nothing left is refused until the debt is paid off. Over time nobody gets more than the limit; within a minute the
//! excess is what was running when the last token of it was used. What may take more than the whole quota by itself is
//! refused at any time ([`Demand`]), so that one call leaves no long debt.
//! An [`Account`] is pure, the instant is an argument; a [`Meter`] brings it. Invariant: what was taken under a limit is not forgotten as long as there is one, also
//! where it changes; nothing is counted without a limit, and whoever gets one begins with all of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use firstlight_engine::clock::{Clock, Nanos};
use firstlight_engine::request::{RejectReason, SamplingParams};

use crate::clock::InstantClock;

const MINUTE: Nanos = 60_000_000_000;

/// What a caller may use a minute; `None` is without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests that do work.
    pub requests: Option<u32>,
    /// Tokens, of prompts and answers together.
    pub tokens: Option<u32>,
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Requests a minute.
    Requests,
    /// Tokens a minute.
    Tokens,
}

impl Quota {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
        }
    }
}

/// What one prompt and its answers may take at most.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    max_tokens: u32,
    num_choices: u64,
    max_model_len: u32,
}

impl Demand {
    /// Of `num_choices` answers. One alone for which no number was named asks for nothing: it gets what the context leaves,
    /// and no caller can know how much that is. Of several each may take all that the context leaves.
    pub fn new(params: &SamplingParams, num_choices: usize, max_model_len: u32) -> Self {
        let max_tokens = match (params.max_tokens, num_choices) {
            (u32::MAX, 1) => 0,
            (max_tokens, _) => max_tokens,
        };
        Self { max_tokens, num_choices: num_choices as u64, max_model_len }
    }

    /// Tokens, with a prompt of `prompt_len`: no answer is longer than what the context leaves beside it.
    pub fn tokens(self, prompt_len: u64) -> u64 {
        let room = u64::from(self.max_model_len).saturating_sub(prompt_len);
        let answers = u64::from(self.max_tokens).min(room).saturating_mul(self.num_choices);
        prompt_len.saturating_add(answers)
    }

    /// Tokens, however long the prompt is: a longer one takes more until it leaves less to the answers, so that it is the
    /// shortest or the longest that takes the least.
    pub fn least(self) -> u64 {
        self.tokens(1).min(self.tokens(u64::from(self.max_model_len.saturating_sub(1)).max(1)))
    }
}

/// A caller that has nothing left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverQuota {
    /// Of what.
    pub quota: Quota,
    /// The limit, a minute.
    pub per_minute: u32,
    /// Until it is admitted, should it use nothing more by then.
    pub wait: Nanos,
}

/// How one quota stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which.
    pub quota: Quota,
    /// The limit, a minute.
    pub per_minute: u32,
    /// What is left now.
    pub left: u32,
    /// Until all of it is there again.
    pub full_in: Nanos,
}

/// What one caller used.
#[derive(Debug, Default)]
pub struct Account {
    state: Mutex<State>,
}

/// An account and the clock that it is kept by: for those who charge it from elsewhere.
#[derive(Clone, Debug)]
pub struct Meter {
    account: Arc<Account>,
    clock: InstantClock,
}

impl Meter {
    /// Of `account`, whose every instant is of `clock`.
    pub fn new(account: Arc<Account>, clock: InstantClock) -> Self {
        Self { account, clock }
    }

    /// As [`Account::admit`], now.
    ///
    /// # Errors
    /// Nothing is left.
    pub fn admit(&self, uses_tokens: bool) -> Result<(), OverQuota> {
        self.account.admit(uses_tokens, self.clock.now())
    }

    /// As [`Account::covers`].
    ///
    /// # Errors
    /// It is larger than the whole quota.
    pub fn covers(&self, needed: u64) -> Result<(), RejectReason> {
        self.account.covers(needed)
    }

    /// As [`Account::take_tokens`], now.
    pub fn take_tokens(&self, count: u64) {
        self.account.take_tokens(count, self.clock.now());
    }

    /// As [`Account::give_back_tokens`].
    pub fn give_back_tokens(&self, count: u64) {
        self.account.give_back_tokens(count);
    }

    /// As [`Account::standings`], now.
    pub fn standings(&self) -> Vec<Standing> {
        self.account.standings(self.clock.now())
    }
}

#[derive(Debug, Default)]
struct State {
    limits: Limits,
    requests: Bucket,
    tokens: Bucket,
}

/// The instant at which it is full again.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    full_at: Nanos,
}

/// The time in which `count` come back, rounded up.
fn time_of(count: u64, per_minute: u32) -> Nanos {
    let time = (u128::from(count) * u128::from(MINUTE)).div_ceil(u128::from(per_minute.max(1)));
    Nanos::try_from(time).unwrap_or(Nanos::MAX)
}

impl Bucket {
    /// How long until one more may be taken.
    fn wait(self, per_minute: u32, now: Nanos) -> Nanos {
        let full_at = self.full_at.max(now).saturating_add(time_of(1, per_minute));
        full_at.saturating_sub(now.saturating_add(MINUTE))
    }

    fn take(&mut self, count: u64, per_minute: u32, now: Nanos) {
        self.full_at = self.full_at.max(now).saturating_add(time_of(count, per_minute));
    }

    /// What was used and has not come back, rounded up.
    fn used(self, per_minute: u32, now: Nanos) -> u64 {
        let lacking = u128::from(self.full_at.saturating_sub(now)) * u128::from(per_minute);
        u64::try_from(lacking.div_ceil(u128::from(MINUTE))).unwrap_or(u64::MAX)
    }

    /// Under another limit; what was used stays used.
    fn relimit(&mut self, old: Option<u32>, new: Option<u32>, now: Nanos) {
        let used = old.map_or(0, |per_minute| self.used(per_minute, now));
        *self = Self::default();
        if let Some(per_minute) = new {
            self.take(used, per_minute, now);
        }
    }
}

impl Account {
    /// One that has used nothing.
    pub fn new(limits: Limits) -> Self {
        Self { state: Mutex::new(State { limits, ..Default::default() }) }
    }

    /// Other limits from now on; what was used stays used, except where there is no limit on it for a while.
    pub fn relimit(&self, limits: Limits, now: Nanos) {
        let state = &mut *self.state();
        if state.limits != limits {
            state.requests.relimit(state.limits.requests, limits.requests, now);
            state.tokens.relimit(state.limits.tokens, limits.tokens, now);
            state.limits = limits;
        }
    }

    /// Takes a request, which may also use tokens where `uses_tokens`.
    ///
    /// # Errors
    /// Nothing is left of one of the two; then nothing is taken.
    pub fn admit(&self, uses_tokens: bool, now: Nanos) -> Result<(), OverQuota> {
        let state = &mut *self.state();
        let over = |quota, bucket: Bucket, per_minute: Option<u32>| {
            let per_minute = per_minute?;
            let wait = bucket.wait(per_minute, now);
            (wait > 0).then_some(OverQuota { quota, per_minute, wait })
        };
        let requests = over(Quota::Requests, state.requests, state.limits.requests);
        let tokens = over(Quota::Tokens, state.tokens, state.limits.tokens.filter(|_| uses_tokens));
        // Whoever lacks both hears of the one that takes longer.
        if let Some(over) = requests.into_iter().chain(tokens).max_by_key(|over| over.wait) {
            return Err(over);
        }
        if let Some(per_minute) = state.limits.requests {
            state.requests.take(1, per_minute, now);
        }
        Ok(())
    }

    /// Whether a request that may take `needed` tokens could ever be paid for.
    ///
    /// # Errors
    /// It is larger than the whole quota.
    pub fn covers(&self, needed: u64) -> Result<(), RejectReason> {
        match self.state().limits.tokens {
            Some(tokens_per_minute) if needed > u64::from(tokens_per_minute) => {
                Err(RejectReason::OverQuota { needed, tokens_per_minute })
            }
            _ => Ok(()),
        }
    }

    /// Takes tokens that are known by now; where there are not so many left, that is a debt.
    pub fn take_tokens(&self, count: u64, now: Nanos) {
        let state = &mut *self.state();
        if let Some(per_minute) = state.limits.tokens {
            state.tokens.take(count, per_minute, now);
        }
    }

    /// Gives back tokens that were taken and turn out not to be used.
    pub fn give_back_tokens(&self, count: u64) {
        let state = &mut *self.state();
        if let Some(per_minute) = state.limits.tokens {
            state.tokens.full_at = state.tokens.full_at.saturating_sub(time_of(count, per_minute));
        }
    }

    /// How each quota that has a limit stands.
    pub fn standings(&self, now: Nanos) -> Vec<Standing> {
        let state = self.state();
        let pairs = [
            (Quota::Requests, state.limits.requests, state.requests),
            (Quota::Tokens, state.limits.tokens, state.tokens),
        ];
        let standing = |(quota, per_minute, bucket): (Quota, Option<u32>, Bucket)| {
            let per_minute = per_minute?;
            let left = u64::from(per_minute).saturating_sub(bucket.used(per_minute, now));
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            Some(Standing { quota, per_minute, left, full_in: bucket.full_at.saturating_sub(now) })
        };
        pairs.into_iter().filter_map(standing).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment of whole numbers.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Nanos = 1_000_000_000;

    fn account(requests: u32, tokens: u32) -> Account {
        Account::new(Limits { requests: Some(requests), tokens: Some(tokens) })
    }

    fn check(account: &Account, at: Nanos, expected: Result<(), (Quota, Nanos)>) {
        let got = account.admit(true, at).map_err(|over| (over.quota, over.wait));
        assert_eq!(got, expected, "at {at}");
    }

    #[test]
    fn a_minutes_requests_are_admitted_at_once_and_the_rest_as_they_come_back() {
        let account = account(3, 1000);
        for _ in 0..3 {
            check(&account, 5 * S, Ok(()));
        }
        check(&account, 5 * S, Err((Quota::Requests, 20 * S)));
        check(&account, 24 * S, Err((Quota::Requests, S)));
        check(&account, 25 * S, Ok(()));
        check(&account, 25 * S, Err((Quota::Requests, 20 * S)));
        // After a long pause it is a minute's worth again and no more.
        for _ in 0..3 {
            check(&account, 1000 * S, Ok(()));
        }
        check(&account, 1000 * S, Err((Quota::Requests, 20 * S)));
        assert_eq!(Account::default().admit(true, 0), Ok(()), "without limits nobody is refused");
    }

    #[test]
    fn tokens_may_run_into_debt_which_is_paid_off_before_the_next_request() {
        let account = account(1000, 60);
        check(&account, 0, Ok(()));
        account.take_tokens(59, 0);
        check(&account, 0, Ok(()));
        account.take_tokens(31, 0);
        // 90 of 60 are used: 30 of debt and the one that a request must find, at one a second.
        check(&account, 0, Err((Quota::Tokens, 31 * S)));
        assert_eq!(account.admit(false, 0), Ok(()), "what uses no tokens needs none");
        check(&account, 30 * S, Err((Quota::Tokens, S)));
        check(&account, 31 * S, Ok(()));
        account.take_tokens(5, 31 * S);
        check(&account, 31 * S, Err((Quota::Tokens, 5 * S)));
        account.give_back_tokens(5);
        check(&account, 31 * S, Ok(()));
        assert_eq!(account.covers(60), Ok(()));
        let too_large = RejectReason::OverQuota { needed: 61, tokens_per_minute: 60 };
        assert_eq!(account.covers(61), Err(too_large));
    }

    #[test]
    fn an_answer_asks_for_no_more_than_the_context_leaves() {
        let check = |max_tokens: u32, num_choices: usize, prompt_len: u64, expected: [u64; 2]| {
            let params = SamplingParams { max_tokens, ..Default::default() };
            let demand = Demand::new(&params, num_choices, 256);
            let got = [demand.tokens(prompt_len), demand.least()];
            assert_eq!(got, expected, "{num_choices} of {max_tokens} after {prompt_len}");
            assert!((1..256).all(|len| demand.tokens(len) >= demand.least()), "{demand:?}");
        };
        check(10, 1, 20, [30, 11]);
        check(10, 3, 20, [50, 31]);
        check(5000, 1, 20, [256, 256]);
        check(5000, 8, 20, [20 + 236 * 8, 255 + 8]);
        check(200, 2, 100, [100 + 156 * 2, 255 + 2]);
        check(u32::MAX, 1, 20, [20, 1]);
        check(u32::MAX, 8, 20, [20 + 236 * 8, 255 + 8]);
        check(0, 1, 20, [20, 1]);
    }

    #[test]
    fn what_was_used_stays_used_under_another_limit() {
        let account = account(10, 100);
        account.take_tokens(50, 0);
        let left =
            |at: Nanos| account.standings(at).iter().map(|one| (one.left, one.full_in)).collect::<Vec<_>>();
        assert_eq!(left(0), [(10, 0), (50, 30 * S)]);
        account.relimit(Limits { requests: Some(10), tokens: Some(60) }, 0);
        assert_eq!(left(0), [(10, 0), (10, 50 * S)]);
        account.relimit(Limits { requests: None, tokens: Some(30) }, 0);
        assert_eq!(left(0), [(0, 100 * S)]);
        check(&account, 0, Err((Quota::Tokens, 42 * S)));
        assert_eq!(left(100 * S), [(30, 0)]);
        account.take_tokens(30, 100 * S);
        account.relimit(Limits::default(), 100 * S);
        account.relimit(Limits { requests: None, tokens: Some(30) }, 100 * S);
        assert_eq!(left(100 * S), [(30, 0)], "nothing is counted without a limit");
    }
}
