//! Rendering of templates.

use std::fmt;
use std::io::{self, Write};

use mail_parser::decoders::html::html_to_text;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value as EngineValue, escape_formatter};
use serde::Serialize;
use serde_json::{Map, Value};

use super::user_text::without_links;
use super::{FoundTemplate, TemplatePart, VariableAuthor};
use crate::notification::Channel;

/// A rendered message.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum MessageContent {
    Email {
        /// A single line.
        subject: String,
        /// Plain text, derived from the HTML if the template has no text part.
        text: String,
        /// HTML, if the template has an HTML part.
        html: Option<String>,
    },
    Sms {
        text: String,
    },
    Push {
        /// A single line.
        title: String,
        body: String,
    },
}

/// The reason why a template does not render.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenderError {
    /// A variable is missing or has a type that the template cannot use.
    #[error("the template does not render: {0}")]
    Template(String),
    /// The output exceeds the limit of its part.
    #[error("the part {0} renders to more than {1} bytes")]
    TooLong(&'static str, usize),
}

impl fmt::Debug for MessageContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[content]")
    }
}

impl FoundTemplate<'_> {
    /// Renders all parts. Text written by users is changed so that it contains no link.
    ///
    /// # Errors
    /// A part failed. Rendering again with the same variables fails again.
    pub(crate) fn render(
        &self,
        variables: &Map<String, Value>,
        author: VariableAuthor,
    ) -> Result<MessageContent, RenderError> {
        let pairs = variables.iter().map(|(name, value)| {
            let user_text = value.as_str().filter(|_| self.is_user_text(name, author));
            let serialized = || EngineValue::from(Serde(value));
            let value = user_text.map_or_else(serialized, |text| without_links(text).into());
            (name.clone(), value)
        });
        let context = EngineValue::from_pairs(pairs);
        let part = |part| self.part(part, &context);
        let has = |part| self.variant.parts.contains(&part);
        Ok(match self.channel {
            Channel::Email => {
                let html = has(TemplatePart::Html).then(|| part(TemplatePart::Html));
                let html = html.transpose()?;
                let text = match (&html, has(TemplatePart::Text)) {
                    (Some(html), false) => html_to_text(html),
                    (_, _) => part(TemplatePart::Text)?,
                };
                MessageContent::Email {
                    subject: one_line(&part(TemplatePart::Subject)?),
                    text,
                    html,
                }
            }
            Channel::Sms => MessageContent::Sms {
                text: part(TemplatePart::Text)?.trim_end().to_owned(),
            },
            Channel::Push => MessageContent::Push {
                title: one_line(&part(TemplatePart::Title)?),
                body: part(TemplatePart::Text)?.trim_end().to_owned(),
            },
        })
    }

    fn part(&self, part: TemplatePart, context: &EngineValue) -> Result<String, RenderError> {
        let (name, channel) = (self.name.as_str(), self.channel.as_str());
        let key = format!(
            "{name}/{channel}.{}.{}",
            self.locale.as_str(),
            part.as_str()
        );
        let template = self.templates.environment.get_template(&key);
        let template = template.map_err(|error| failed(&error))?;
        let mut output = CappedBuffer {
            bytes: Vec::new(),
            cap: part.cap(),
            over: false,
        };
        let rendered = template.render_captured_to(context, &mut output).map(drop);
        match rendered {
            Err(_) if output.over => Err(RenderError::TooLong(part.as_str(), part.cap())),
            Err(error) => Err(failed(&error)),
            Ok(()) => Ok(String::from_utf8_lossy(&output.bytes).into_owned()),
        }
    }
}

/// Prints strings, numbers and booleans. A list or map in place of a single value is an error of
/// the caller and is rejected, so that the engine's notation never reaches a recipient.
pub(super) fn print(
    output: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &EngineValue,
) -> Result<(), Error> {
    use ValueKind::{Iterable, Map, None, Seq};
    if [None, Map, Seq, Iterable].contains(&value.kind()) {
        let reason = "only a text, a number or a truth value can be printed";
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    escape_formatter(output, state, value)
}

/// Converts an engine error without the values of variables.
fn failed(error: &Error) -> RenderError {
    let place = error.line().map(|line| format!(" at line {line}"));
    RenderError::Template(format!("{}{}", error.kind(), place.unwrap_or_default()))
}

/// Reduces a subject or title to one line, regardless of the variables.
fn one_line(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.collect::<String>().trim().to_owned()
}

/// A writer that fails beyond a size limit.
struct CappedBuffer {
    bytes: Vec<u8>,
    cap: usize,
    over: bool,
}

impl Write for CappedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.cap {
            self.over = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The filter `url`: returns the text if it is an absolute URL of an allowed scheme. `javascript:`
/// and similar schemes fail.
pub(super) fn url_filter(text: &str) -> Result<String, Error> {
    // User text that contained a link has been changed to contain a space.
    let is_whole = !text.contains(char::is_whitespace);
    match url::Url::parse(text) {
        Ok(url) if is_whole && matches!(url.scheme(), "http" | "https" | "mailto" | "tel") => {
            Ok(url.into())
        }
        Ok(_) | Err(_) => Err(Error::new(
            ErrorKind::InvalidOperation,
            "must be an absolute http, https, mailto or tel URL",
        )),
    }
}
