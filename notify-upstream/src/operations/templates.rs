//! Previews of templates.

use serde_json::{Map, Value, json};

use crate::delivery::provider::segment_count;
use crate::notification::Channel;
use crate::templates::{
    Locale, MessageContent, RenderError, TemplateName, Templates, VariableAuthor,
};

/// A rendered template.
pub(crate) struct Preview {
    /// The version of the template.
    pub(crate) version: u32,
    /// The locale that was chosen.
    pub(crate) locale: String,
    pub(crate) content: MessageContent,
}

/// The reason why a template cannot be rendered.
pub(crate) enum PreviewError {
    /// There is no such template, or none for the channel.
    NotFound,
    /// The paths of variables that are missing.
    Missing(Vec<String>),
    /// The template does not render with these variables.
    Render(RenderError),
}

/// Renders a template with the variables of a service.
///
/// # Errors
/// The template does not exist, or does not render with these variables.
pub(crate) fn preview(
    templates: &Templates,
    (name, channel, locale): (&TemplateName, Channel, Option<&Locale>),
    variables: &Map<String, Value>,
    author: VariableAuthor,
) -> Result<Preview, PreviewError> {
    let found = templates
        .find(name, channel, locale)
        .map_err(|_| PreviewError::NotFound)?;
    let missing = found.missing(variables);
    if !missing.is_empty() {
        return Err(PreviewError::Missing(missing));
    }
    let content = found
        .render(variables, author)
        .map_err(PreviewError::Render)?;
    Ok(Preview {
        version: found.version(),
        locale: found.locale().as_str().to_owned(),
        content,
    })
}

/// Returns a message as JSON: `subject`, `text` and `html` of an e-mail, `text` and `segments` of a
/// text message, `title` and `body` of a push message.
pub(crate) fn content_json(content: &MessageContent) -> Value {
    match content {
        MessageContent::Email {
            subject,
            text,
            html,
        } => json!({ "subject": subject, "text": text, "html": html }),
        MessageContent::Sms { text } => json!({ "text": text, "segments": segment_count(text) }),
        MessageContent::Push { title, body } => json!({ "title": title, "body": body }),
    }
}
