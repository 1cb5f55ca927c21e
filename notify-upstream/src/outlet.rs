//! The providers of each channel, and which one carries the next message.

use std::time::Duration;

use crate::deliver::Sent;
use crate::notification::{Channel, Priority};
use crate::provider::{Codes, Message, Provider, Refusal, Sight, Taken};
use crate::retry::Class;

mod breaker;
mod build;
mod rate;
mod turnstile;

pub use breaker::{Breaker, Standing};
pub use rate::Rate;
pub use turnstile::{Slot, Turnstile};

/// The providers of each channel.
#[derive(Debug)]
pub struct Outlets {
    channels: [Vec<Outlet>; 3],
    codes: Codes,
}

/// One provider with what guards it.
#[derive(Debug)]
pub struct Outlet {
    /// Its name in the configuration, in events and in metrics.
    pub name: String,
    /// The provider.
    pub provider: Provider,
    /// Its share among the providers of the channel.
    pub weight: u32,
    /// Calls at once and a second at most.
    pub turnstile: Turnstile,
    /// Whether it works.
    pub breaker: Breaker,
}

/// A provider that was chosen for a message, and the right to call it.
#[derive(Debug)]
pub struct Pass<'a> {
    outlet: &'a Outlet,
    codes: &'a Codes,
    /// It goes to see whether the provider works again.
    is_probe: bool,
    _slot: Slot,
}

/// Why there is nobody to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPass {
    /// The channel has no provider for such an address.
    Refused(Refusal),
    /// All of those are known to fail, and one is asked again after so long.
    LeftAlone(Duration),
}

/// How long one call takes at most, whatever the provider: each has deadlines of its own that end before. A stop waits for
/// as long, see [`LONGEST_STOP`](crate::LONGEST_STOP).
pub const LONGEST_CALL: Duration = Duration::from_secs(90);

// === impl Outlets ===

impl Outlets {
    /// By [`Channel::index`].
    #[must_use]
    pub fn new(channels: [Vec<Outlet>; 3], codes: Codes) -> Self {
        Self { channels, codes }
    }

    /// Waits for a turn at one of the channel's providers: by weight, another one with every attempt, none that is known
    /// to fail. The most urgent of those that wait for one comes first.
    ///
    /// # Errors
    /// The channel has no provider for such an address, or all of them are known to fail.
    pub async fn pass(
        &self,
        channel: Channel,
        message: &Message<'_>,
        attempt: i32,
        priority: Priority,
    ) -> Result<Pass<'_>, NoPass> {
        let (outlet, is_probe) = choose(&self.channels[channel.index()], message, attempt)?;
        Ok(Pass { outlet, codes: &self.codes, is_probe, _slot: outlet.turnstile.pass(priority).await })
    }

    /// Asks the channel's providers, by our id, for a message that may have been handed over.
    ///
    /// # Errors
    /// One that could tell gives no answer now; its name and what it said.
    pub async fn look(
        &self,
        channel: Channel,
        message: &Message<'_>,
    ) -> Result<Option<Sent>, (String, Refusal)> {
        for outlet in
            self.channels[channel.index()].iter().filter(|outlet| outlet.provider.carries(message.to))
        {
            match tokio::time::timeout(LONGEST_CALL, outlet.provider.look(message)).await {
                Ok(Ok(Sight::There(taken))) => return Ok(Some(outlet.sent(message, taken))),
                Ok(Ok(Sight::NotThere | Sight::Blind)) => {}
                Ok(Err(refusal)) => return Err((outlet.name.clone(), refusal)),
                Err(_) => return Err((outlet.name.clone(), self.codes.judge("*", "timeout"))),
            }
        }
        Ok(None)
    }

    /// Whether our word for a reason means that nobody knows whether the provider took it.
    #[must_use]
    pub fn leaves_doubt(&self, code: &str) -> bool {
        self.codes.leaves_doubt(code)
    }

    /// The best that is known of a channel's providers.
    #[must_use]
    pub fn standing(&self, channel: Channel) -> Standing {
        best(&self.channels[channel.index()])
    }
}

impl Pass<'_> {
    /// Whether the provider was found to fail every call while this one waited for its turn.
    #[must_use]
    pub fn is_vain(&self) -> bool {
        !self.is_probe && self.outlet.breaker.standing() != Standing::Closed
    }

    /// Sends.
    ///
    /// # Errors
    /// The name of the provider and what it said.
    pub async fn send(self, message: &Message<'_>) -> Result<Sent, (String, Refusal)> {
        let outcome = match tokio::time::timeout(LONGEST_CALL, self.outlet.provider.send(message)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.codes.judge("*", "timeout")),
        };
        self.outlet.breaker.note(outcome.as_ref().err().map(|refusal| refusal.class));
        match outcome {
            Ok(taken) => Ok(self.outlet.sent(message, taken)),
            Err(refusal) => Err((self.outlet.name.clone(), refusal)),
        }
    }
}

impl Outlet {
    fn sent(&self, message: &Message<'_>, taken: Taken) -> Sent {
        Sent { provider: self.name.clone(), detail: taken.detail, address: Some(message.to.hash()) }
    }
}

/// What the one that stands best allows; what has no provider at all is no matter of waiting.
fn best<'a>(outlets: impl IntoIterator<Item = &'a Outlet>) -> Standing {
    let worse = |standing: &Standing| match standing {
        Standing::Closed => Duration::ZERO,
        Standing::Due => Duration::from_nanos(1),
        Standing::Open(left) => *left,
    };
    outlets.into_iter().map(|outlet| outlet.breaker.standing()).min_by_key(worse).unwrap_or(Standing::Closed)
}

/// Among those that carry such an address and may be called, by weight: the id's random bits spread notifications over
/// them; each further attempt goes one provider on. With it, whether the call is a probe.
fn choose<'a>(
    outlets: &'a [Outlet],
    message: &Message<'_>,
    attempt: i32,
) -> Result<(&'a Outlet, bool), NoPass> {
    let carry: Vec<&Outlet> = outlets.iter().filter(|outlet| outlet.provider.carries(message.to)).collect();
    if carry.is_empty() {
        let (class, code) = (Class::Configuration, "no_provider".to_owned());
        return Err(NoPass::Refused(Refusal { class, code, ..Refusal::unfit() }));
    }
    let may = |outlet: &&Outlet| !matches!(outlet.breaker.standing(), Standing::Open(_));
    let mut candidates: Vec<&Outlet> = carry.iter().copied().filter(may).collect();
    while let Some(at) = by_weight(&candidates, message, attempt) {
        let outlet = candidates.swap_remove(at);
        let is_probe = outlet.breaker.standing() != Standing::Closed;
        // Another may have taken the one call that was due.
        if outlet.breaker.lets_through() {
            return Ok((outlet, is_probe));
        }
    }
    Err(NoPass::LeftAlone(match best(carry) {
        Standing::Open(left) => left,
        Standing::Closed | Standing::Due => Duration::ZERO,
    }))
}

fn by_weight(candidates: &[&Outlet], message: &Message<'_>, attempt: i32) -> Option<usize> {
    let seed = message.id.0.as_u128() & u128::from(u32::MAX);
    let total: u128 = candidates.iter().map(|outlet| u128::from(outlet.weight.max(1))).sum();
    let mut point = seed % total.max(1);
    let first = candidates.iter().position(|outlet| {
        let weight = u128::from(outlet.weight.max(1));
        let hit = point < weight;
        point = point.saturating_sub(weight);
        hit
    })?;
    Some((first + usize::try_from(attempt - 1).unwrap_or(0)) % candidates.len())
}

#[cfg(test)]
mod tests {
    use postern_common::Clock;
    use postern_common::clock::Timestamp;

    use super::*;
    use crate::address::{Address, DeviceToken, EmailAddress};
    use crate::provider::script::Script;
    use crate::sequence::Sequence;
    use crate::template::Content;

    fn outlets(clock: &Clock) -> (Outlets, [Script; 2]) {
        let scripts = [Script::default(), Script::default()];
        let outlet = |name: &str, script: &Script, weight| Outlet {
            name: name.to_owned(),
            provider: Provider::Script(script.clone()),
            weight,
            turnstile: Turnstile::new(8, None),
            breaker: Breaker::new(clock.clone()),
        };
        let email = vec![outlet("a", &scripts[0], 3), outlet("b", &scripts[1], 1)];
        (Outlets::new([email, Vec::new(), Vec::new()], Codes::shipped()), scripts)
    }

    async fn send(outlets: &Outlets, channel: Channel, attempt: i32, order: i64) -> Result<String, String> {
        let to = Address::Email(EmailAddress::parse("ada@example.com").expect("address"));
        let content = Content::Sms { text: String::new() };
        let message = Message {
            id: Sequence::id(order),
            to: &to,
            content: &content,
            created_at: Timestamp(0),
            expires_at: None,
            urgent: false,
            unsubscribe: false,
        };
        let pass = outlets.pass(channel, &message, attempt, Priority::Normal).await;
        let why = |none| match none {
            NoPass::Refused(refusal) => refusal.code,
            NoPass::LeftAlone(left) => format!("left alone for {} s", left.as_secs()),
        };
        let sent = pass.map_err(why)?.send(&message).await;
        sent.map(|sent| sent.provider).map_err(|(name, refusal)| format!("{name} {}", refusal.code))
    }

    #[tokio::test]
    async fn the_work_is_shared_by_weight_and_the_other_stands_in() {
        let clock = Clock::manual(Timestamp(0));
        let (outlets, scripts) = outlets(&clock);
        for order in 0..400 {
            send(&outlets, Channel::Email, 1, order).await.expect("sent");
        }
        let share = scripts[0].calls().len();
        assert!((240..=360).contains(&share), "{share} of 400 by weight 3 of 4");
        scripts[0].refuse(&["451"; 10]);
        let mut failures = 0;
        for order in 0..400 {
            failures += usize::from(send(&outlets, Channel::Email, 1, order).await.is_err());
        }
        assert_eq!(failures, 10, "the breaker opens and the other carries everything");
        assert_eq!(outlets.standing(Channel::Email), Standing::Closed);
    }

    #[tokio::test]
    async fn while_none_works_none_is_called_but_one_probe_each() {
        let clock = Clock::manual(Timestamp(0));
        let (outlets, scripts) = outlets(&clock);
        scripts.iter().for_each(|script| script.refuse(&["451"; 40]));
        let calls = || [scripts[0].calls().len(), scripts[1].calls().len()];
        for order in 0..200 {
            send(&outlets, Channel::Email, 1, order).await.expect_err("refused");
        }
        assert_eq!(
            (calls(), outlets.standing(Channel::Email)),
            ([10, 10], Standing::Open(Duration::from_secs(2)))
        );
        let left_alone = send(&outlets, Channel::Email, 1, 1).await.expect_err("refused");
        assert_eq!(left_alone, "left alone for 2 s");
        clock.advance(Duration::from_secs(2));
        assert_eq!(outlets.standing(Channel::Email), Standing::Due);
        for order in 0..200 {
            send(&outlets, Channel::Email, 1, order).await.expect_err("refused");
        }
        assert_eq!(calls(), [11, 11]);
    }

    #[tokio::test]
    async fn a_probe_is_not_spent_on_one_that_another_provider_carries() {
        let clock = Clock::manual(Timestamp(0));
        let (outlets, scripts) = outlets(&clock);
        scripts[0].refuse(&["451"; 60]);
        for round in 0..30 {
            let before = scripts[0].calls().len();
            for order in 0..100 {
                let _ = send(&outlets, Channel::Email, 1, order).await;
            }
            assert_eq!(scripts[0].calls().len(), before + if round == 0 { 10 } else { 1 }, "round {round}");
            clock.advance(Duration::from_secs(60));
        }
    }

    #[tokio::test]
    async fn a_repeat_goes_to_the_other_and_no_provider_is_a_matter_of_configuration() {
        let clock = Clock::manual(Timestamp(0));
        let (outlets, scripts) = outlets(&clock);
        let to = Address::DeviceToken(DeviceToken::parse("t").expect("token"));
        let content = Content::Sms { text: String::new() };
        let message = Message {
            id: Sequence::id(1),
            to: &to,
            content: &content,
            created_at: Timestamp(0),
            expires_at: None,
            urgent: false,
            unsubscribe: false,
        };
        for attempt in 1..=4 {
            let pass = outlets.pass(Channel::Email, &message, attempt, Priority::Normal).await;
            pass.expect("a provider").send(&message).await.expect("sent");
        }
        assert_eq!([scripts[0].calls().len(), scripts[1].calls().len()], [2, 2]);
        assert_eq!(send(&outlets, Channel::Sms, 1, 1).await, Err("no_provider".to_owned()));
        assert_eq!(Codes::shipped().judge("smtp", "451").class, Class::Transient);
    }
}
