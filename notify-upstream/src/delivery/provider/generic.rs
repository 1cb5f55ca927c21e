//! Any HTTP API, with a template of the request in the configuration.

use minijinja::{AutoEscape, Environment, UndefinedBehavior, context};
use postern_core::Secret;
use url::Url;

use super::call::ApiClient;
use super::{OutgoingMessage, ProviderRefusal, SendResult, UNSUPPORTED};
use crate::templates::MessageContent;

/// The settings of an API.
#[derive(Clone, Debug)]
pub(crate) struct HttpConfig {
    pub(crate) url: Url,
    /// The value of `Authorization`.
    pub(crate) authorization: Option<Secret>,
    /// The body: JSON with `{{ id }}`, `{{ channel }}`, `{{ to }}`, `{{ text }}`, `{{ title }}`,
    /// `{{ subject }}` and `{{ html }}`, each of which is inserted as a JSON value.
    pub(crate) body: String,
}

/// A client of an HTTP API.
pub(crate) struct HttpProvider {
    config: HttpConfig,
    api: ApiClient,
    environment: Environment<'static>,
}

const TEMPLATE_NAME: &str = "body.json";
const MAX_TEMPLATE_STEPS: u64 = 10_000;

impl HttpProvider {
    /// Creates a client. No connection is opened.
    ///
    /// # Errors
    /// The template of the body is invalid, or TLS cannot be set up.
    pub(crate) fn new(config: HttpConfig) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(MAX_TEMPLATE_STEPS));
        environment.set_auto_escape_callback(|_| AutoEscape::Json);
        environment
            .add_template_owned(TEMPLATE_NAME, config.body.clone())
            .map_err(|error| format!("body: {error}"))?;
        let http = Self {
            config,
            api: ApiClient::new("http")?,
            environment,
        };
        let text = "\"".to_owned();
        let trial = http.body("id", "email", "to", &MessageContent::Sms { text })?;
        serde_json::from_str::<serde_json::Value>(&trial)
            .map_err(|error| format!("body: not JSON: {error}"))?;
        Ok(http)
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        let Some(authorization) = &self.config.authorization else {
            return request;
        };
        request.header(http::header::AUTHORIZATION, authorization.expose())
    }

    /// Asks for the head of the resource that takes messages.
    pub(super) async fn probe(&self) -> Result<(), ProviderRefusal> {
        let request = self.authorized(self.api.http.head(self.config.url.clone()));
        let is_good = |status| !matches!(status, 401 | 403);
        self.api.probe(request, is_good).await
    }

    pub(super) async fn send(&self, message: &OutgoingMessage<'_>) -> SendResult {
        self.api.send(self.request(message)?).await
    }

    fn request(
        &self,
        message: &OutgoingMessage<'_>,
    ) -> Result<reqwest::RequestBuilder, ProviderRefusal> {
        let (id, channel) = (message.id.to_string(), message.to.channel().as_str());
        let unsupported = |error| ProviderRefusal::not_sent(UNSUPPORTED).with_detail(error);
        let body = self.body(&id, channel, message.to.key(), message.content);
        let body = body.map_err(unsupported)?;
        let request = self
            .api
            .http
            .post(self.config.url.clone())
            .header(http::header::CONTENT_TYPE, "application/json")
            .header("Idempotency-Key", &id)
            .body(body);
        Ok(self.authorized(request))
    }

    fn body(
        &self,
        id: &str,
        channel: &str,
        to: &str,
        content: &MessageContent,
    ) -> Result<String, String> {
        let template = self.environment.get_template(TEMPLATE_NAME);
        let template = template.map_err(|error| error.to_string())?;
        let none = String::new();
        let (text, title, subject, html) = match content {
            MessageContent::Email {
                subject,
                text,
                html,
            } => (text, &none, subject, html.as_ref().unwrap_or(&none)),
            MessageContent::Sms { text } => (text, &none, &none, &none),
            MessageContent::Push { title, body } => (body, title, &none, &none),
        };
        let values = context! { id, channel, to, text, title, subject, html };
        let rendered = template.render(values);
        rendered.map_err(|error| format!("body: {}", error.kind()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(body: &str) -> Result<HttpProvider, String> {
        let url = "http://127.0.0.1:9/".parse().expect("URL");
        let config = HttpConfig {
            url,
            authorization: None,
            body: body.to_owned(),
        };
        HttpProvider::new(config)
    }

    #[test]
    fn values_are_inserted_as_json_and_invalid_template_fails() {
        let http = make(r#"{"to": {{ to }}, "message": {{ text }}, "ref": {{ id }}}"#)
            .expect("the configuration is valid");
        let text = "\"}, \"to\": \"+1\" {{ 7*7 }}\n".to_owned();
        let expected = serde_json::json!({"to": "+49", "message": text, "ref": "1"});
        let content = MessageContent::Sms { text };
        let body = http.body("1", "sms", "+49", &content).expect("renders");
        let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body, expected);
        for bad in ["{{ nope }}", "{\"a\": {{ to }}", "{{ to", "\"{{ to }}\""] {
            assert!(make(bad).is_err(), "{bad}");
        }
    }
}
