//! Changes that a statement announces to all processes over `LISTEN`/`NOTIFY`.

/// A change made by any process, command-line tools included, that running replicas apply without
/// waiting for their next periodic query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaSignal {
    /// Entries were added to or removed from a suppression list.
    SuppressionChanged,
    /// A provider was paused or resumed.
    PausesChanged,
    /// Rows were put into the queue outside of acceptance, by an operator.
    RowsQueued,
}

// === impl ReplicaSignal ===

impl ReplicaSignal {
    /// Returns the code that takes the place of a lane code in the payload.
    pub(crate) const fn code(self) -> i16 {
        match self {
            Self::SuppressionChanged => -1,
            Self::RowsQueued => -2,
            Self::PausesChanged => -3,
        }
    }

    /// Returns the signal with a code, if there is one.
    pub(crate) const fn from_code(code: i16) -> Option<Self> {
        match code {
            -1 => Some(Self::SuppressionChanged),
            -2 => Some(Self::RowsQueued),
            -3 => Some(Self::PausesChanged),
            _ => None,
        }
    }

    /// Returns the payload: the origin 0, which no process has, and the code.
    pub(crate) fn payload(self) -> String {
        format!("[0,[{}]]", self.code())
    }
}
