//! Parsing and validation of notification requests.

use std::time::Duration;

use postern_core::clock::Timestamp;
use postern_core::decode::{Field, Object, Value};
use postern_core::{Code, Problem};
use sha2::{Digest, Sha256};

use crate::address::{ActorId, Recipient};
use crate::delivery::provider::exceeded_limit;
use crate::notification::{Channel, Priority};
use crate::templates::{Locale, RenderError, TemplateName, Templates, TextMistake, VariableAuthor};

/// Maximum size of a notification's variables, as JSON.
const MAX_VARIABLES_BYTES: usize = 64 << 10;
/// Maximum distance into the future of `sendAt` and `expiresAt`. Shorter than the retention of
/// records.
pub(crate) const MAX_SCHEDULE_AHEAD: Duration = Duration::from_secs(30 * 86_400);

/// A notification request that is well-formed. Its template has not been checked.
#[derive(Clone, Debug)]
pub(crate) struct NotificationRequest {
    pub(crate) channel: Channel,
    pub(crate) recipient: Recipient,
    pub(crate) template: TemplateName,
    /// Input of the template, never template source. Names are sorted.
    pub(crate) variables: serde_json::Map<String, serde_json::Value>,
    pub(crate) locale: Option<Locale>,
    pub(crate) priority: Priority,
    /// Earliest time of delivery. A time in the past means immediately.
    pub(crate) send_at: Option<Timestamp>,
    /// Time from which the notification is no longer delivered.
    pub(crate) expires_at: Option<Timestamp>,
}

/// A request whose template exists and has all variables that it requires.
#[derive(Clone, Debug)]
pub(crate) struct ValidatedRequest {
    pub(crate) request: NotificationRequest,
    /// Whether the message may go to an unverified address of the requesting user.
    pub(crate) allows_unverified: bool,
    pub(crate) template_version: u32,
    /// The locale in which the template will be rendered.
    pub(crate) locale: Locale,
}

impl NotificationRequest {
    /// Parses one notification and records every error. A `sendAt` or `expiresAt` that is out of
    /// range records an error and still has a value, because the request may repeat one that was
    /// accepted in time.
    pub(crate) fn read(object: &Object<'_>, now: Timestamp) -> Option<Self> {
        let channel = object.required("channel", |field| field.one_of(Channel::NAMES));
        let recipient = object.required("recipient", |field| Recipient::read(&field, channel));
        let template = object.required("template", TemplateName::read);
        let variables = object.or("variables", serde_json::Map::new(), variables);
        let locale = object.optional("locale", Locale::read);
        let priority = object.or("priority", Priority::Normal, |field| {
            field.one_of(Priority::NAMES)
        });
        let send_at = object.optional("sendAt", |field| schedulable_time(field, now));
        let expires_at = object.optional("expiresAt", |field| {
            let at = schedulable_time(field, now)?;
            if at <= send_at.unwrap_or(now).max(now) {
                let _noted: Option<()> =
                    field.reject("already_expired", "must lie after now and after sendAt");
            }
            Some(at)
        });
        Some(Self {
            channel: channel?,
            recipient: recipient?,
            template: template?,
            variables,
            locale,
            priority,
            send_at,
            expires_at,
        })
    }

    /// Checks the template and the variables against the loaded templates.
    ///
    /// # Errors
    /// 422 `unknown_template`; 422 with every variable that is missing, or that is user text and
    /// too long; 422 if the template does not render with these variables.
    pub(crate) fn check(
        self,
        templates: &Templates,
        author: VariableAuthor,
    ) -> Result<ValidatedRequest, Problem> {
        let found = templates.find(&self.template, self.channel, self.locale.as_ref());
        let found = found.map_err(|detail| {
            Problem::new(Code::UnknownTemplate).error("/template", "unknown_template", detail)
        })?;
        let missing = found.missing(&self.variables).into_iter().map(|name| {
            let detail = format!("the template needs the variable `{name}`");
            (name.replace('.', "/"), "missing_variable", detail)
        });
        reject(missing)?;
        reject(
            found
                .user_text_mistakes(&self.variables, author)
                .into_iter(),
        )?;
        // Variables that the template cannot render, such as a number in place of a string, would
        // fail every delivery attempt.
        let content = found.render(&self.variables, author).map_err(|error| {
            let unusable = "the template does not render with these variables";
            unrenderable(match error {
                RenderError::Template(_) => unusable.to_owned(),
                RenderError::TooLong(..) => error.to_string(),
            })
        })?;
        if let Some(limit) = exceeded_limit(&content) {
            return Err(unrenderable(limit));
        }
        Ok(ValidatedRequest {
            allows_unverified: *found.settings.unverified_addresses.get(self.channel),
            template_version: found.settings.version,
            locale: found.locale.clone(),
            request: self,
        })
    }

    /// Returns the actor that the notification is addressed to, if it is addressed by `actorId`.
    pub(crate) fn addressee(&self) -> Option<&ActorId> {
        match &self.recipient {
            Recipient::ActorId(actor) => Some(actor),
            Recipient::Address(_) => None,
        }
    }

    /// Returns a SHA-256 digest of the parsed request. It does not depend on the spelling of the
    /// JSON: requests with the same fingerprint are equal.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let Self {
            channel,
            recipient,
            template,
            variables,
            locale,
            priority,
            send_at,
            expires_at,
        } = self;
        let canonical = serde_json::json!([
            channel.as_str(),
            recipient,
            template.as_str(),
            variables,
            locale.as_ref().map(Locale::as_str),
            priority.as_str(),
            send_at.map(|at| at.0),
            expires_at.map(|at| at.0),
        ]);
        Sha256::digest(canonical.to_string()).into()
    }
}

/// Rejects a request with all mistakes: variable, code and detail. There may be none.
fn reject(mistakes: impl Iterator<Item = TextMistake>) -> Result<(), Problem> {
    let problem = mistakes.fold(None, |problem: Option<Problem>, (name, code, detail)| {
        let problem = problem.unwrap_or_else(|| Problem::new(Code::ValidationFailed));
        Some(problem.error(&format!("/variables/{name}"), code, detail))
    });
    problem.map_or(Ok(()), Err)
}

fn unrenderable(detail: String) -> Problem {
    Problem::new(Code::ValidationFailed).error("/variables", "does_not_render", detail)
}

fn variables(field: Field<'_>) -> Option<serde_json::Map<String, serde_json::Value>> {
    let Value::Object(_) = field.value() else {
        return field.fail("invalid_type", "must be an object");
    };
    let serde_json::Value::Object(map) = field.node().to_json() else {
        return None;
    };
    if serde_json::to_vec(&map).map_or(0, |text| text.len()) > MAX_VARIABLES_BYTES {
        let detail = format!("must be at most {MAX_VARIABLES_BYTES} bytes of JSON");
        return field.reject("too_large", detail);
    }
    Some(map)
}

fn schedulable_time(field: Field<'_>, now: Timestamp) -> Option<Timestamp> {
    let at = field.timestamp()?;
    if at > now.plus(MAX_SCHEDULE_AHEAD) {
        let _noted: Option<()> = field.reject("too_far_ahead", "must lie within 30 days");
    }
    Some(at)
}

#[cfg(test)]
mod tests;
