//! Message templates: files in one folder, loaded and validated as a whole.
//!
//! Enters: the template folder, and the variables of a notification. Leaves: rendered message
//! parts. Depends on [`notification`](crate::notification) only.
//!
//! `{folder}/{name}/template.toml` holds the version and the settings of a template. Beside it are
//! its parts, one file each, named `{channel}.{locale}.{part}`, such as `email.en.subject`,
//! `email.en.html`, `email.en.txt`, `sms.de.txt`, `push.en.title`, `push.en.txt`.

mod links;
mod load;
mod name;
mod render;
mod user_text;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use minijinja::Environment;
use serde_json::{Map, Value, json};

pub(crate) use load::fingerprint;
pub(crate) use name::{Locale, TemplateName};
pub(crate) use render::{MessageContent, RenderError};
pub(crate) use user_text::{TextMistake, VariableAuthor};

use crate::notification::{Channel, PerChannel};

/// All loaded templates.
#[derive(Debug)]
pub(crate) struct Templates {
    environment: Environment<'static>,
    by_name: BTreeMap<TemplateName, Template>,
    default_locale: Locale,
}

/// A template in all its locales and channels.
#[derive(Debug)]
struct Template {
    settings: Arc<TemplateSettings>,
    variants: BTreeMap<(Channel, Locale), TemplateVariant>,
    /// Warnings about variables that may be misspelt.
    lonely_variables: Vec<String>,
}

/// The settings in `template.toml`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TemplateSettings {
    /// Version, from 1. Raised with each change of meaning and recorded with each notification.
    pub(crate) version: u32,
    /// Variables that may be absent.
    pub(crate) optional: BTreeSet<String>,
    /// The category that recipients may leave; its e-mail carries `List-Unsubscribe` with one click
    /// (RFC 8058). `None`: transactional. Default: the name.
    pub(crate) category: Option<String>,
    /// Variables whose values were written by users although a service submits them: they are
    /// limited in length and never become links. All variables submitted by a user are treated so
    /// in every template.
    pub(crate) user_variables: BTreeSet<String>,
    /// Whether users may have the template sent to an unverified address of their own, as
    /// registration and verification require. Default: on no channel.
    pub(crate) unverified_addresses: PerChannel<bool>,
}

/// The parts of one channel and locale.
#[derive(Debug, Default)]
struct TemplateVariant {
    parts: BTreeSet<TemplatePart>,
    /// Paths of the variables that the parts use and that are not optional.
    required: BTreeSet<String>,
}

/// A file of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TemplatePart {
    Subject,
    Html,
    Text,
    Title,
}

/// A variant returned by [`Templates::find`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundTemplate<'a> {
    templates: &'a Templates,
    pub(crate) settings: &'a Arc<TemplateSettings>,
    name: &'a TemplateName,
    channel: Channel,
    pub(crate) locale: &'a Locale,
    variant: &'a TemplateVariant,
}

// === impl Templates ===

impl Templates {
    /// Returns the variant for a channel in the first available of: the requested locale, its
    /// language without region, the default locale, any locale.
    ///
    /// # Errors
    /// A sentence: the template does not exist, or has no variant for this channel.
    pub(crate) fn find(
        &self,
        name: &TemplateName,
        channel: Channel,
        wanted: Option<&Locale>,
    ) -> Result<FoundTemplate<'_>, &'static str> {
        let template = self.by_name.get_key_value(name);
        let (name, template) = template.ok_or("there is no template of this name")?;
        let of = |locale: &Locale| template.variants.get_key_value(&(channel, locale.clone()));
        let found = wanted
            .and_then(|locale| of(locale).or_else(|| of(&locale.without_region())))
            .or_else(|| of(&self.default_locale))
            .or_else(|| template.variants.iter().find(|((on, _), _)| *on == channel));
        let ((_, locale), variant) = found.ok_or("this template is not there for this channel")?;
        Ok(FoundTemplate {
            templates: self,
            settings: &template.settings,
            name,
            channel,
            locale,
            variant,
        })
    }

    /// Returns warnings about variables that differ between the parts of a template.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = (&str, &String)> {
        self.by_name.iter().flat_map(|(name, template)| {
            let warnings = template.lonely_variables.iter();
            warnings.map(|text| (name.as_str(), text))
        })
    }

    /// Returns whether a template has a variant for a channel.
    pub(crate) fn have_channel(&self, channel: Channel) -> bool {
        let mut variants = self.by_name.values().flat_map(|it| it.variants.keys());
        variants.any(|(of, _)| *of == channel)
    }

    /// Describes all templates, by name, for operators.
    pub(crate) fn descriptions(&self) -> Vec<Value> {
        let variant = |((channel, locale), variant): (&(Channel, Locale), &TemplateVariant)| {
            let (channel, locale) = (channel.as_str(), locale.as_str());
            json!({"channel": channel, "locale": locale, "variables": variant.required})
        };
        let describe = |(name, template): (&TemplateName, &Template)| {
            json!({
                "name": name.as_str(),
                "version": template.settings.version,
                "optionalVariables": template.settings.optional,
                "category": template.settings.category,
                "variants": template.variants.iter().map(variant).collect::<Vec<_>>(),
            })
        };
        self.by_name.iter().map(describe).collect()
    }

    /// Returns the category of a template, unless it is transactional. That of a template which has
    /// been deleted is its name.
    pub(crate) fn category<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        let template = TemplateName::parse(name).and_then(|name| self.by_name.get(&name));
        template.map_or(Some(name), |template| template.settings.category.as_deref())
    }

    pub(crate) fn categories(&self) -> BTreeSet<&str> {
        let templates = self.by_name.values();
        templates
            .filter_map(|template| template.settings.category.as_deref())
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }
}

// === impl FoundTemplate ===

impl FoundTemplate<'_> {
    /// Returns the paths of the required variables that are absent or `null`.
    pub(crate) fn missing(&self, variables: &Map<String, Value>) -> Vec<String> {
        let required = self.variant.required.iter();
        let missing = required.filter(|path| !is_present(path, variables));
        missing.cloned().collect()
    }
}

fn is_present(path: &str, variables: &Map<String, Value>) -> bool {
    let mut names = path.split('.');
    let mut here = names.next().and_then(|name| variables.get(name));
    for name in names {
        here = here.and_then(|value| value.get(name));
    }
    here.is_some_and(|value| !value.is_null())
}

// === impl TemplatePart ===

impl TemplatePart {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Subject => "subject",
            Self::Html => "html",
            Self::Text => "txt",
            Self::Title => "title",
        }
    }

    /// Maximum size of the rendered part, in bytes.
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
