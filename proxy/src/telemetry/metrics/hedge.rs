//! Metrics of hedged requests.

/// The result of a second attempt, or of the decision to make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HedgeResult {
    /// It was answered first.
    Won,
    /// The first attempt was answered first.
    Lost,
    /// It failed.
    Failed,
    /// The budget is exhausted, or there is no other address.
    Denied,
}

impl HedgeResult {
    /// Returns the label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Won => "won",
            Self::Lost => "lost",
            Self::Failed => "failed",
            Self::Denied => "denied",
        }
    }
}
