//! Dead letters and paused providers, which operators change.

use postern_core::clock::Timestamp;
use serde::Serialize;

use crate::notification::{Channel, Lane, NotificationId};

/// A selection of dead letters.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeadFilter {
    /// The notification.
    pub(crate) id: Option<NotificationId>,
    /// The code of the reason.
    pub(crate) code: Option<String>,
    /// Failed at this time or later.
    pub(crate) since: Option<Timestamp>,
    /// Failed before this time.
    pub(crate) before: Option<Timestamp>,
    /// The provider of the last result that names one.
    pub(crate) provider: Option<String>,
    /// The name of the template.
    pub(crate) template: Option<String>,
    /// The channel.
    pub(crate) channel: Option<Channel>,
    /// The maximum number.
    pub(crate) limit: i64,
}

/// A notification that failed permanently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadLetter {
    /// The notification.
    pub(crate) id: NotificationId,
    /// Its lane.
    pub(crate) lane: Lane,
    /// The number of attempts.
    pub(crate) attempt: i32,
    /// The time of the failure.
    pub(crate) at: Timestamp,
    /// The code of the reason.
    pub(crate) code: Option<String>,
    /// The name of the template.
    pub(crate) template: Option<String>,
    /// The recipient, as JSON.
    pub(crate) recipient: Option<String>,
}

/// A provider that an operator has paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ProviderPause {
    /// The name of the provider.
    #[serde(skip)]
    pub(crate) provider: String,
    /// The operator.
    pub(crate) operator: String,
    /// The time of the pause.
    pub(crate) at: Timestamp,
    /// The reason that the operator gave.
    pub(crate) reason: Option<String>,
}

// === impl DeadFilter ===

impl DeadFilter {
    /// Returns the lanes of the channel, as they are stored.
    pub(in crate::store) fn lanes(&self) -> Option<Vec<i16>> {
        let lanes = self.channel.map(Lane::of);
        lanes.map(|lanes| lanes.map(Lane::code).into())
    }
}

// === impl ProviderPause ===

impl ProviderPause {
    /// Creates a pause from the columns `provider`, `operator`, `at`, `reason`.
    pub(in crate::store) fn of_row(
        (provider, operator, at, reason): (String, String, i64, Option<String>),
    ) -> Self {
        Self {
            provider,
            operator,
            at: Timestamp(at),
            reason,
        }
    }
}
