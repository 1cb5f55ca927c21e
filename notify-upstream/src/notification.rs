//! The vocabulary of notifications: channel, priority, lane, identifier and order.
//!
//! Input: names in requests and codes in the store. Output: values of closed sets. Depends on no
//! other module.

mod sequence;

use std::fmt;

use postern_core::clock::Timestamp;
use uuid::Uuid;

pub(crate) use sequence::OrderSequence;

/// A way to reach a recipient.
///
/// A channel is declared in one place: here, with its stable code and its name (see the table
/// below). Every other use is a `match` that the compiler checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Channel {
    /// E-mail over SMTP or the API of a provider.
    Email,
    /// A text message.
    Sms,
    /// A push message to an app or a browser.
    Push,
}

/// The urgency of a notification. Within a channel, variants are processed in order of declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Priority {
    /// For delivery at once.
    Critical,
    /// For delivery within seconds.
    High,
    /// For delivery within minutes.
    Normal,
    /// For delivery when there is capacity.
    Low,
}

/// A first-in-first-out queue: one channel, one priority, and either first attempts or retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lane {
    pub channel: Channel,
    pub priority: Priority,
    /// Whether the lane holds retries. They have a share of the permits of their own.
    pub retry: bool,
}

/// One value for each channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PerChannel<T>([T; Channel::ALL.len()]);

/// The identifier of a notification: a UUIDv7, so that identifiers sort by time of acceptance and
/// old ones can be deleted by them. The time is that of the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NotificationId(pub Uuid);

/// A position in a lane: milliseconds since the epoch at acceptance, or at the due time, followed
/// by a counter of 12 bits.
pub(crate) type Order = i64;

/// Number of bits of an [`Order`] below the milliseconds.
pub(crate) const ORDER_COUNTER_BITS: u32 = 12;

/// Defines `code` and `from_code` of an enum whose values are stored. Codes are part of the schema:
/// never change or reuse one.
macro_rules! stored_codes {
    ($name:ident { $($variant:ident = $code:literal),+ $(,)? }) => {
        impl $name {
            /// Returns the code in the store.
            pub(crate) const fn code(self) -> i16 {
                match self {
                    $(Self::$variant => $code,)+
                }
            }

            /// Returns the value with this code, or `None` for a code of a newer version.
            pub(crate) const fn from_code(code: i16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

/// Defines `ALL`, `NAMES` and `as_str` of an enum whose values have names in requests, responses
/// and configuration.
macro_rules! names {
    ($name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        impl $name {
            /// All values, in order of declaration.
            pub(crate) const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// All names with their values, for decoding.
            pub(crate) const NAMES: &[(&str, Self)] = &[$(($text, Self::$variant)),+];

            /// Returns the name in requests, responses and configuration.
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}

pub(crate) use stored_codes;

stored_codes!(Channel {
    Email = 0,
    Sms = 1,
    Push = 2,
});

names!(Channel {
    Email = "email",
    Sms = "sms",
    Push = "push",
});

stored_codes!(Priority {
    Critical = 0,
    High = 1,
    Normal = 2,
    Low = 3,
});

names!(Priority {
    Critical = "CRITICAL",
    High = "HIGH",
    Normal = "NORMAL",
    Low = "LOW",
});

// === impl Priority ===

impl Priority {
    /// Returns whether writes of other priorities yield to this one.
    pub(crate) const fn is_urgent(self) -> bool {
        matches!(self, Self::Critical | Self::High)
    }

    /// Returns the position in [`Priority::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

// === impl PerChannel ===

impl<T> PerChannel<T> {
    /// Creates the values of all channels with `value`.
    pub(crate) fn from_fn(value: impl FnMut(Channel) -> T) -> Self {
        Self(Channel::ALL.map(value))
    }

    /// Returns the value of `channel`.
    pub(crate) const fn get(&self, channel: Channel) -> &T {
        &self.0[channel as usize]
    }

    /// Returns the value of `channel` for modification.
    pub(crate) const fn get_mut(&mut self, channel: Channel) -> &mut T {
        &mut self.0[channel as usize]
    }
}

// === impl Lane ===

/// Number of codes that are reserved for the lanes of one channel. Part of the schema.
const CODES_PER_CHANNEL: i16 = 8;

impl Lane {
    pub(crate) const PER_CHANNEL: usize = Priority::ALL.len() * 2;

    /// Returns the lane of first attempts.
    pub(crate) const fn first(channel: Channel, priority: Priority) -> Self {
        Self {
            channel,
            priority,
            retry: false,
        }
    }

    /// Returns the lane of retries with the same channel and priority.
    pub(crate) const fn retries(self) -> Self {
        Self {
            retry: true,
            ..self
        }
    }

    /// Returns the lanes of a channel: for each priority first attempts, then retries.
    pub(crate) fn of(channel: Channel) -> [Self; Self::PER_CHANNEL] {
        std::array::from_fn(|index| Self {
            channel,
            priority: Priority::ALL[index / 2],
            retry: index % 2 == 1,
        })
    }

    /// Returns the position in [`Lane::of`].
    pub(crate) const fn index(self) -> usize {
        self.priority.index() * 2 + self.retry as usize
    }

    /// Returns the code in the store.
    pub(crate) const fn code(self) -> i16 {
        self.channel.code() * CODES_PER_CHANNEL + self.priority.code() * 2 + self.retry as i16
    }

    /// Returns the lane with this code, or `None` for a code of a newer version.
    pub(crate) fn from_code(code: i16) -> Option<Self> {
        let within = code.rem_euclid(CODES_PER_CHANNEL);
        Some(Self {
            channel: Channel::from_code(code.div_euclid(CODES_PER_CHANNEL))?,
            priority: Priority::from_code(within / 2)?,
            retry: within % 2 == 1,
        })
    }
}

// === impl NotificationId ===

impl NotificationId {
    /// Parses the hyphenated form in lower case, the only form that the API returns.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let uuid = Uuid::try_parse(text).ok()?;
        (text.len() == 36 && !text.bytes().any(|byte| byte.is_ascii_uppercase()))
            .then_some(Self(uuid))
    }

    /// Returns the lowest identifier of instant `at`: a bound for retention and lists.
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
pub(crate) fn order_time(order: Order) -> Timestamp {
    Timestamp(order >> ORDER_COUNTER_BITS)
}

/// The least order of an instant.
pub(crate) fn order_at(at: Timestamp) -> Order {
    at.0.max(0) << ORDER_COUNTER_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_codes_are_stable_and_reversible() {
        for channel in Channel::ALL {
            for (index, lane) in Lane::of(channel).into_iter().enumerate() {
                assert_eq!(lane.index(), index);
                assert_eq!(Lane::from_code(lane.code()), Some(lane));
            }
        }
        let push_low_retry = Lane::first(Channel::Push, Priority::Low).retries();
        assert_eq!(push_low_retry.code(), 23, "codes are part of the schema");
        assert_eq!(Lane::from_code(24), None);
        assert_eq!(Lane::from_code(-1), None);
    }

    #[test]
    fn notification_id_has_one_spelling() {
        let text = "01890a5d-ac96-774b-bcce-b302099a8057";
        let id = NotificationId::parse(text).map(|id| id.to_string());
        assert_eq!(id.as_deref(), Some(text));
        assert_eq!(NotificationId::parse(&text.to_uppercase()), None);
        assert_eq!(NotificationId::parse(&text.replace('-', "")), None);
    }
}
