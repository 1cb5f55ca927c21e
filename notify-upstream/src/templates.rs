//! Templates: files under one folder, loaded whole or refused whole.
//!
//! `{folder}/{name}/template.toml` holds the version and what the template asks for; beside it
//! stand the parts, one file each: `{channel}.{locale}.{part}`, such as `email.en.subject`,
//! `email.en.html`, `email.en.txt`, `sms.de.txt`, `push.en.title`, `push.en.txt`.

mod links;
mod load;
mod name;
mod render;
mod text;
mod user_text;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use minijinja::Environment;
use serde_json::{Map, Value};

pub(crate) use load::fingerprint;
pub(crate) use name::{Locale, TemplateName};
pub(crate) use render::{Content, RenderError};
pub(crate) use user_text::{Author, UserTextMistake};

use crate::notification::Channel;

/// Every template of this process.
#[derive(Debug)]
pub(crate) struct Templates {
    environment: Environment<'static>,
    by_name: BTreeMap<TemplateName, Template>,
    default_locale: Locale,
}

/// One template in all its languages and channels.
#[derive(Debug)]
struct Template {
    settings: Arc<Settings>,
    variants: BTreeMap<(&'static str, Locale), Variant>,
}

/// `template.toml`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Rises with every change of meaning; recorded with each notification. From 1 on.
    pub(crate) version: u32,
    /// Variables that may be absent.
    pub(crate) optional: BTreeSet<String>,
    /// What becomes of an attempt of which nobody knows whether it reached the provider. Default:
    /// send again.
    pub(crate) ambiguous: Ambiguous,
    /// Whether its e-mail carries `List-Unsubscribe` with one click (RFC 8058). Default: no.
    pub(crate) unsubscribe: bool,
    /// Variables whose values some user wrote, though a service passes them on: they are short, and
    /// never become links. What a user itself passes on is treated so in every template.
    pub(crate) user_variables: BTreeSet<String>,
    /// By [`Channel::index`]: channels on which a user may have it sent to an address of its own
    /// that is not verified, as registration and verification must. Default: none.
    pub(crate) unverified_addresses: [bool; 3],
}

/// What becomes of an attempt of which nobody knows whether it reached the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ambiguous {
    /// It is sent again: better twice than never.
    Resend,
    /// It has failed: better never than twice.
    Fail,
}

/// One channel in one language.
#[derive(Debug)]
struct Variant {
    parts: BTreeSet<Part>,
    /// Paths of the variables that it uses and that are not optional.
    needs: BTreeSet<String>,
}

/// A file of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Subject,
    Html,
    Text,
    Title,
}

/// A variant that was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    templates: &'a Templates,
    settings: &'a Settings,
    name: &'a TemplateName,
    channel: Channel,
    locale: &'a Locale,
    variant: &'a Variant,
}

/// Why no variant was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// There is no template of this name.
    NoSuchTemplate,
    /// There is one, but not for this channel.
    NotOnThisChannel,
}

// === impl Templates ===

impl Templates {
    /// The variant for a channel: in the wanted language, else in the language without its region,
    /// else in the default one, else in the first there is.
    ///
    /// # Errors
    /// When the name is unknown, or known and not there for this channel in any language.
    pub(crate) fn find(
        &self,
        name: &TemplateName,
        channel: Channel,
        wanted: Option<&Locale>,
    ) -> Result<Found<'_>, Unfit> {
        let (name, template) = self
            .by_name
            .get_key_value(name)
            .ok_or(Unfit::NoSuchTemplate)?;
        let of = |locale: &Locale| {
            template
                .variants
                .get_key_value(&(channel.as_str(), locale.clone()))
        };
        let found = wanted
            .and_then(|locale| of(locale).or_else(|| of(&locale.without_region())))
            .or_else(|| of(&self.default_locale))
            .or_else(|| {
                template
                    .variants
                    .iter()
                    .find(|((on, _), _)| *on == channel.as_str())
            });
        let ((_, locale), variant) = found.ok_or(Unfit::NotOnThisChannel)?;
        Ok(Found {
            templates: self,
            settings: &template.settings,
            name,
            channel,
            locale,
            variant,
        })
    }

    /// Name, channel and locale of everything that can be sent.
    pub(crate) fn variants(&self) -> impl Iterator<Item = (&TemplateName, Channel, &Locale)> {
        self.by_name.iter().flat_map(|(name, template)| {
            template.variants.keys().filter_map(move |(on, locale)| {
                let channel = Channel::ALL
                    .into_iter()
                    .find(|channel| channel.as_str() == *on)?;
                Some((name, channel, locale))
            })
        })
    }

    /// How many templates there are.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }
}

// === impl Found ===

impl Found<'_> {
    /// The template's version.
    #[must_use]
    pub(crate) fn version(&self) -> u32 {
        self.settings.version
    }

    /// What `template.toml` says.
    #[must_use]
    pub(crate) fn settings(&self) -> &Settings {
        self.settings
    }

    /// The language of this variant.
    #[must_use]
    pub(crate) fn locale(&self) -> &Locale {
        self.locale
    }

    /// Paths of the variables that are needed and not there. `null` is nothing that a message could
    /// say.
    #[must_use]
    pub(crate) fn missing(&self, variables: &Map<String, Value>) -> Vec<String> {
        self.variant
            .needs
            .iter()
            .filter(|path| !is_there(path, variables))
            .cloned()
            .collect()
    }
}

fn is_there(path: &str, variables: &Map<String, Value>) -> bool {
    let mut names = path.split('.');
    let mut here = names.next().and_then(|name| variables.get(name));
    for name in names {
        here = here.and_then(|value| value.get(name));
    }
    here.is_some_and(|value| !value.is_null())
}

// === impl Part ===

impl Part {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Subject => "subject",
            Self::Html => "html",
            Self::Text => "txt",
            Self::Title => "title",
        }
    }

    /// Most bytes that it may render to.
    const fn cap(self) -> usize {
        match self {
            Self::Subject | Self::Title => 512,
            Self::Html => 256 << 10,
            Self::Text => 64 << 10,
        }
    }
}

#[cfg(test)]
mod tests;
