//! Calls that show whether a provider would accept messages. None of them sends one.

use super::{Provider, ProviderRefusal};

impl Provider {
    /// Calls the provider as far as that is possible without a message. Returns what was found;
    /// `None` if nobody can be called, as with the push services of browsers.
    ///
    /// # Errors
    /// The provider does not answer, or does not accept the credentials.
    pub(crate) async fn probe(&self) -> Option<Result<&'static str, ProviderRefusal>> {
        Some(match self {
            Self::Smtp(smtp) => smtp.probe().await.map(|()| "accepts the session"),
            Self::Twilio(twilio) => twilio.probe().await.map(|()| "knows the account"),
            Self::Fcm(fcm) => fcm.probe().await.map(|()| "gives the account a token"),
            Self::Http(http) => http.probe().await.map(|()| "answers"),
            Self::WebPush(_) | Self::File(_) | Self::Null => return None,
            #[cfg(test)]
            Self::Script(_) => return None,
        })
    }
}
