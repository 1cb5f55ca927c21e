//! Any API, by a template of the request in the configuration.

use minijinja::{AutoEscape, Environment, UndefinedBehavior, context};
use postern_common::Secret;
use url::Url;

use super::call::{call, client};
use super::{Codes, Message, Refusal, Sight, Taken};
use crate::address::Address;
use crate::template::Content;

/// How an API is called.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Where.
    pub url: Url,
    /// The value of `Authorization`.
    pub authorization: Option<Secret>,
    /// Where to ask whether a message is there, by our id in the place of `{id}`: 200 is yes, 404 no. Without it an attempt
    /// whose outcome is unknown is repeated under the same `Idempotency-Key`.
    pub lookup_url: Option<String>,
    /// The body: JSON with `{{ id }}`, `{{ channel }}`, `{{ to }}`, `{{ text }}`, `{{ title }}`, `{{ subject }}` and
    /// `{{ html }}`, each of which is put in as a JSON value.
    pub body: String,
}

/// An API.
#[derive(Debug)]
pub struct Http {
    config: HttpConfig,
    http: reqwest::Client,
    environment: Environment<'static>,
    codes: Codes,
}

const NAME: &str = "body.json";
const FUEL: u64 = 10_000;
/// Where our id goes in the URL of a look-up.
pub const ID: &str = "{id}";

impl Http {
    /// An API; no connection is made yet.
    ///
    /// # Errors
    /// The template of the body is not valid, or TLS cannot be set up.
    pub fn new(config: HttpConfig, codes: Codes) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| AutoEscape::Json);
        environment
            .add_template_owned(NAME, config.body.clone())
            .map_err(|error| format!("body: {error}"))?;
        let http = Self { config, http: client()?, environment, codes };
        let trial = http.body("id", "email", "to", &Content::Sms { text: "\"".to_owned() })?;
        serde_json::from_str::<serde_json::Value>(&trial)
            .map_err(|error| format!("body: not JSON: {error}"))?;
        Ok(http)
    }

    pub(super) async fn look(&self, message: &Message<'_>) -> Result<Sight, Refusal> {
        let Some(lookup) = &self.config.lookup_url else { return Ok(Sight::Blind) };
        let request = self.authorized(self.http.get(lookup.replace(ID, &message.id.to_string())));
        let answer = call(&self.codes, "http", request).await?;
        match answer.status {
            404 => Ok(Sight::NotThere),
            _ if answer.is_success() => {
                Ok(Sight::There(Taken { detail: Some("found by its id".to_owned()) }))
            }
            _ => Err(answer.refusal(&self.codes, "http", None)),
        }
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.config.authorization {
            Some(authorization) => request.header(http::header::AUTHORIZATION, authorization.expose()),
            None => request,
        }
    }

    pub(super) async fn send(&self, message: &Message<'_>) -> Result<Taken, Refusal> {
        let (id, channel) = (message.id.to_string(), message.to.channel().as_str());
        let to = match message.to {
            Address::Email(_) | Address::Phone(_) | Address::DeviceToken(_) => message.to.key(),
            Address::Subscription(_) => return Err(Refusal::unfit()),
        };
        let body = self
            .body(&id, channel, to, message.content)
            .map_err(|error| Refusal::unfit().with_detail(error))?;
        let request = self
            .http
            .post(self.config.url.clone())
            .header(http::header::CONTENT_TYPE, "application/json")
            .header("Idempotency-Key", &id)
            .body(body);
        let request = self.authorized(request);
        let answer = call(&self.codes, "http", request).await?;
        if answer.is_success() {
            return Ok(Taken { detail: Some(format!("http {}", answer.status)) });
        }
        Err(answer.refusal(&self.codes, "http", None))
    }

    fn body(&self, id: &str, channel: &str, to: &str, content: &Content) -> Result<String, String> {
        let template = self.environment.get_template(NAME).map_err(|error| error.to_string())?;
        let none = String::new();
        let (text, title, subject, html) = match content {
            Content::Email { subject, text, html } => (text, &none, subject, html.as_ref().unwrap_or(&none)),
            Content::Sms { text } => (text, &none, &none, &none),
            Content::Push { title, body } => (body, title, &none, &none),
        };
        let values = context! { id, channel, to, text, title, subject, html };
        template.render(values).map_err(|error| format!("body: {}", error.kind()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(body: &str) -> Result<Http, String> {
        let url = "http://127.0.0.1:9/".parse().expect("URL");
        Http::new(
            HttpConfig { url, authorization: None, lookup_url: None, body: body.to_owned() },
            Codes::shipped(),
        )
    }

    #[test]
    fn values_are_put_in_as_json_and_a_bad_template_is_refused() {
        let http = make(r#"{"to": {{ to }}, "message": {{ text }}, "ref": {{ id }}}"#).expect("sound");
        let content = Content::Sms { text: "\"}, \"to\": \"+1\" {{ 7*7 }}\n".to_owned() };
        let body: serde_json::Value =
            serde_json::from_str(&http.body("1", "sms", "+49", &content).expect("renders")).expect("JSON");
        assert_eq!(
            body,
            serde_json::json!({"to": "+49", "message": "\"}, \"to\": \"+1\" {{ 7*7 }}\n", "ref": "1"})
        );
        for bad in ["{{ nope }}", "{\"a\": {{ to }}", "{{ to", "\"{{ to }}\""] {
            assert!(make(bad).is_err(), "{bad}");
        }
    }
}
