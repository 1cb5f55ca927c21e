//! The words of a notification: channel, priority, lane, id.

mod sequence;

use std::fmt;

use postern_common::clock::Timestamp;
use uuid::Uuid;

pub use sequence::OrderSequence;

/// How it reaches a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// E-mail by SMTP.
    Email,
    /// A text message.
    Sms,
    /// A push message to an app or a browser.
    Push,
}

/// How urgent it is; the order of the variants is the order of processing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// At once.
    Critical,
    /// Within seconds.
    High,
    /// Within minutes.
    Normal,
    /// When there is capacity.
    Low,
}

/// One first-in-first-out line of the queue: a channel, a priority, and whether it holds first
/// attempts or repeats, which have a share of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The channel.
    pub channel: Channel,
    /// The priority.
    pub priority: Priority,
    /// Whether it holds repeats.
    pub retry: bool,
}

/// What a notification is called: a UUIDv7, so that ids sort by the time of acceptance and history
/// can be partitioned by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NotificationId(pub Uuid);

/// Its place in a lane: milliseconds of acceptance (or of becoming due), then a counter of 12 bits.
pub type Order = i64;

/// Bits of an [`Order`] below the milliseconds.
pub(crate) const ORDER_COUNTER_BITS: u32 = 12;

// === impl Channel ===

impl Channel {
    /// Every channel.
    pub(crate) const ALL: [Self; 3] = [Self::Email, Self::Sms, Self::Push];

    /// The name in requests, answers and configuration.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Sms => "sms",
            Self::Push => "push",
        }
    }

    /// Position in [`Channel::ALL`].
    #[must_use]
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Email => 0,
            Self::Sms => 1,
            Self::Push => 2,
        }
    }

    /// Name and value, for decoding.
    pub(crate) const WORDS: &[(&str, Self)] = &[
        ("email", Self::Email),
        ("sms", Self::Sms),
        ("push", Self::Push),
    ];
}

// === impl Priority ===

impl Priority {
    /// Every priority, most urgent first.
    pub(crate) const ALL: [Self; 4] = [Self::Critical, Self::High, Self::Normal, Self::Low];

    /// Name and value, for decoding.
    pub(crate) const WORDS: &[(&str, Self)] = &[
        ("CRITICAL", Self::Critical),
        ("HIGH", Self::High),
        ("NORMAL", Self::Normal),
        ("LOW", Self::Low),
    ];

    /// The name in requests and answers.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "CRITICAL",
            Self::High => "HIGH",
            Self::Normal => "NORMAL",
            Self::Low => "LOW",
        }
    }

    /// Whether somebody waits for it: everything else makes way.
    #[must_use]
    pub(crate) const fn is_urgent(self) -> bool {
        matches!(self, Self::Critical | Self::High)
    }

    /// Position in [`Priority::ALL`].
    #[must_use]
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Critical => 0,
            Self::High => 1,
            Self::Normal => 2,
            Self::Low => 3,
        }
    }
}

// === impl Lane ===

impl Lane {
    /// Lanes of one channel.
    pub(crate) const PER_CHANNEL: usize = 8;

    /// The lane of first attempts.
    #[must_use]
    pub(crate) const fn first(channel: Channel, priority: Priority) -> Self {
        Self {
            channel,
            priority,
            retry: false,
        }
    }

    /// The lane of repeats beside it.
    #[must_use]
    pub(crate) const fn repeats(self) -> Self {
        Self {
            retry: true,
            ..self
        }
    }

    /// Every lane of a channel; for each priority first attempts, then repeats.
    #[must_use]
    pub(crate) fn of(channel: Channel) -> [Self; Self::PER_CHANNEL] {
        std::array::from_fn(|index| Self {
            channel,
            priority: Priority::ALL[index / 2],
            retry: index % 2 == 1,
        })
    }

    /// Position in [`Lane::of`].
    #[must_use]
    pub(crate) const fn index(self) -> usize {
        self.priority.index() * 2 + self.retry as usize
    }

    /// The number in the stores.
    #[must_use]
    pub(crate) fn code(self) -> i16 {
        i16::try_from(self.channel.index() * Self::PER_CHANNEL + self.index()).unwrap_or(i16::MAX)
    }

    /// From the number in the stores; `None` for a number of a newer version.
    #[must_use]
    pub(crate) fn from_code(code: i16) -> Option<Self> {
        let code = usize::try_from(code).ok()?;
        let channel = *Channel::ALL.get(code / Self::PER_CHANNEL)?;
        Self::of(channel).get(code % Self::PER_CHANNEL).copied()
    }
}

// === impl NotificationId ===

impl NotificationId {
    /// Reads the hyphenated form in lower case, the only one that we give out.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let uuid = Uuid::try_parse(text).ok()?;
        (text.len() == 36 && !text.bytes().any(|byte| byte.is_ascii_uppercase()))
            .then_some(Self(uuid))
    }

    /// The least id that could be given out at this instant: a bound for partitions.
    #[must_use]
    pub(crate) fn floor(at: Timestamp) -> Self {
        let millis = u128::try_from(at.0).unwrap_or(0) & ((1 << 48) - 1);
        Self(Uuid::from_u128(millis << 80))
    }
}

impl fmt::Display for NotificationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

/// When something with this order was accepted or became due.
#[must_use]
pub(crate) fn order_time(order: Order) -> Timestamp {
    Timestamp(order >> ORDER_COUNTER_BITS)
}

/// The least order of an instant.
#[must_use]
pub(crate) fn order_at(at: Timestamp) -> Order {
    at.0.max(0) << ORDER_COUNTER_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_survive_the_store() {
        for channel in Channel::ALL {
            for (index, lane) in Lane::of(channel).into_iter().enumerate() {
                assert_eq!(
                    (lane.index(), Lane::from_code(lane.code())),
                    (index, Some(lane))
                );
            }
        }
        assert_eq!(Lane::from_code(24), None);
        assert_eq!(Lane::from_code(-1), None);
    }

    #[test]
    fn an_id_has_one_spelling() {
        let text = "01890a5d-ac96-774b-bcce-b302099a8057";
        assert_eq!(
            NotificationId::parse(text)
                .map(|id| id.to_string())
                .as_deref(),
            Some(text)
        );
        assert_eq!(NotificationId::parse(&text.to_uppercase()), None);
        assert_eq!(NotificationId::parse(&text.replace('-', "")), None);
    }
}
