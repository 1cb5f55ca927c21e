//! Text messages over the API of Twilio.

use postern_core::Secret;
use serde_json::Value;
use url::Url;

use super::call::{ApiClient, ApiResponse};
use super::{OutgoingMessage, ProviderRefusal, SendResult, UNSUPPORTED};
use crate::address::{Address, PhoneNumber};
use crate::templates::MessageContent;

/// The settings of an account.
#[derive(Clone, Debug)]
pub(crate) struct TwilioConfig {
    /// `https://api.twilio.com`, or a test server.
    pub(crate) base: Url,
    /// The SID of the account.
    pub(crate) account: String,
    /// The token of the account.
    pub(crate) auth_token: Secret,
    pub(crate) sender: TwilioSender,
    /// The URL of status callbacks; the identifier is added to the query.
    pub(crate) callback: Option<Url>,
}

/// The sender of text messages.
#[derive(Clone, Debug)]
pub(crate) enum TwilioSender {
    /// A phone number of the account.
    Number(PhoneNumber),
    /// A messaging service, by its SID.
    Service(String),
}

/// A client of the API of Twilio.
pub(crate) struct TwilioProvider {
    config: TwilioConfig,
    api: ApiClient,
}

impl TwilioProvider {
    /// Creates a client. No connection is opened.
    pub(crate) fn new(config: TwilioConfig) -> Result<Self, String> {
        let api = ApiClient::new("twilio")?;
        Ok(Self { config, api })
    }

    /// Reads the account.
    pub(super) async fn probe(&self) -> Result<(), ProviderRefusal> {
        let (config, mut url) = (&self.config, self.config.base.clone());
        url.set_path(&format!("/2010-04-01/Accounts/{}.json", config.account));
        let request = self.api.http.get(url);
        let request = request.basic_auth(&config.account, Some(config.auth_token.expose()));
        self.api.probe(request, |status| status < 300).await
    }

    pub(super) async fn send(&self, message: &OutgoingMessage<'_>) -> SendResult {
        let (Address::Phone(to), MessageContent::Sms { text }) = (message.to, message.content)
        else {
            return Err(ProviderRefusal::not_sent(UNSUPPORTED));
        };
        let answer = self.api.call(self.request(message, to, text)).await?;
        if answer.is_success() {
            return Ok(answer.text("sid"));
        }
        Err(refusal(&answer, to))
    }

    fn request(
        &self,
        message: &OutgoingMessage<'_>,
        to: &PhoneNumber,
        text: &str,
    ) -> reqwest::RequestBuilder {
        let config = &self.config;
        let mut url = config.base.clone();
        url.set_path(&format!(
            "/2010-04-01/Accounts/{}/Messages.json",
            config.account
        ));
        let mut form = vec![("To", to.as_str().to_owned()), ("Body", text.to_owned())];
        form.push(match &config.sender {
            TwilioSender::Number(number) => ("From", number.as_str().to_owned()),
            TwilioSender::Service(service) => ("MessagingServiceSid", service.clone()),
        });
        if let Some(callback) = &config.callback {
            let mut callback = callback.clone();
            callback
                .query_pairs_mut()
                .append_pair("id", &message.id.to_string());
            form.push(("StatusCallback", callback.into()));
        }
        self.api
            .http
            .post(url)
            .basic_auth(&config.account, Some(config.auth_token.expose()))
            .header("I-Twilio-Idempotency-Token", message.id.to_string())
            .form(&form)
    }
}

/// Classifies a response by the error code in its body (twilio.com/docs/usage/twilios-response).
pub(super) fn refusal(answer: &ApiResponse, to: &PhoneNumber) -> ProviderRefusal {
    let body = answer.json();
    let code = body.get("code").and_then(Value::as_i64);
    let code = code.map(|code| code.to_string()).unwrap_or_default();
    let description = body.get("message").and_then(Value::as_str);
    let description = description.unwrap_or_default();
    let detail = format!("{code} {description}").replace(to.as_str(), "<recipient>");
    let refusal = answer.refusal("twilio", &[&code]);
    refusal.with_detail(detail.trim())
}

#[cfg(test)]
mod tests;
