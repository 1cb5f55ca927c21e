//! Loading and validation of the template folder.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;

use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use postern_core::config;
use postern_core::decode::Object;

use super::{
    Locale, Template, TemplateName, TemplatePart, TemplateSettings, TemplateVariant, Templates,
};
use crate::notification::{Channel, PerChannel};

/// Maximum number of engine steps for one part, enough for some thousand lines of output. Bounds
/// endless loops.
const MAX_RENDER_STEPS: u64 = 50_000;
/// Maximum number of templates.
const MAX_TEMPLATES: usize = 10_000;
/// Maximum size of a template file, in bytes.
const MAX_FILE_BYTES: u64 = 512 << 10;

impl Templates {
    /// Loads every template in a folder.
    ///
    /// # Errors
    /// Every error in every file, one per line; no template is loaded then.
    pub(crate) fn load(folder: &Path, default_locale: Locale) -> Result<Self, String> {
        if !folder.is_dir() {
            return Err(format!("{}: there is no such folder", folder.display()));
        }
        let mut loader = TemplateLoader {
            environment: environment(),
            errors: Vec::new(),
        };
        let by_name = loader.load_folder(folder);
        if by_name.is_empty() && loader.errors.is_empty() {
            loader
                .errors
                .push(format!("{}: no template found", folder.display()));
        }
        if loader.errors.is_empty() {
            Ok(Self {
                environment: loader.environment,
                by_name,
                default_locale,
            })
        } else {
            Err(loader.errors.join("\n"))
        }
    }
}

/// Returns a hash of the names, sizes and modification times of the files of all templates, which
/// changes with their contents.
pub(crate) fn fingerprint(folder: &Path) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let entries = |folder: &Path| {
        let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<_> = found
            .take(MAX_TEMPLATES)
            .map(|entry| entry.path())
            .collect();
        paths.sort();
        paths
    };
    let mut hasher = DefaultHasher::new();
    for template in entries(folder) {
        for path in std::iter::once(template.clone()).chain(entries(&template)) {
            if let Ok(metadata) = std::fs::metadata(&path) {
                (&path, metadata.len(), metadata.modified().ok()).hash(&mut hasher);
            }
        }
    }
    hasher.finish()
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_formatter(super::render::print);
    environment.set_fuel(Some(MAX_RENDER_STEPS));
    environment.set_recursion_limit(32);
    environment.set_auto_escape_callback(|name| {
        if name.ends_with(".html") {
            AutoEscape::Html
        } else {
            AutoEscape::None
        }
    });
    environment.add_filter("url", super::render::url_filter);
    environment
}

/// A file, with the variables that it requires.
type PartUse = ((Channel, Locale, TemplatePart), BTreeSet<String>);

/// Returns the variables that one file uses although another says the same without them: the other
/// body of a mail, or the same part in another language. They may be misspelt, and every notification
/// without them would be rejected.
fn lonely_variables(uses: &[PartUse]) -> Vec<String> {
    let is_body = |part| matches!(part, TemplatePart::Html | TemplatePart::Text);
    let mut found = Vec::new();
    for ((channel, locale, part), variables) in uses {
        let is_alike = |((on, language, other), _): &PartUse| {
            on == channel
                && match language == locale {
                    true => part != other && is_body(*part) && is_body(*other),
                    false => part == other,
                }
        };
        let count = |name: &String| uses.iter().filter(|(_, all)| all.contains(name)).count();
        if uses.iter().any(is_alike) {
            let file = format!("{}.{}.{}", channel.as_str(), locale.as_str(), part.as_str());
            let lonely = variables.iter().filter(|name| count(name) == 1);
            found.extend(lonely.map(|name| format!("`{name}` is used in {file} only")));
        }
    }
    found
}

struct TemplateLoader {
    environment: Environment<'static>,
    errors: Vec<String>,
}

impl TemplateLoader {
    fn load_folder(&mut self, folder: &Path) -> BTreeMap<TemplateName, Template> {
        let mut templates = BTreeMap::new();
        for (file_name, path) in self.entries(folder) {
            if !path.is_dir() {
                continue;
            }
            match TemplateName::parse(&file_name) {
                Some(name) => {
                    if let Some(template) = self.load_template(&name, &path) {
                        templates.insert(name, template);
                    }
                }
                None => self.add_error(
                    &path,
                    "is not a template name: 1 to 64 of a-z, 0-9, - and _",
                ),
            }
        }
        templates
    }

    fn load_template(&mut self, name: &TemplateName, folder: &Path) -> Option<Template> {
        // Without settings the parts are still compiled, so that all errors are reported together.
        let settings = config::load(&folder.join("template.toml"), |root| {
            TemplateSettings::read(root, name)
        })
        .map_err(|exit| self.errors.push(exit.message().to_owned()))
        .ok();
        let optional = |path: &String| {
            settings
                .as_ref()
                .is_some_and(|settings| is_optional(path, &settings.optional))
        };
        let mut variants: BTreeMap<_, TemplateVariant> = BTreeMap::new();
        let mut uses = Vec::new();
        for (file_name, path) in self.entries(folder) {
            if file_name == "template.toml" {
                continue;
            }
            let Some((channel, locale, part)) = parse_part(&file_name) else {
                self.add_error(
                    &path,
                    "is not named {channel}.{locale}.{part}, such as email.en.html or sms.de.txt",
                );
                continue;
            };
            let required = self.compile(name, &file_name, &path).unwrap_or_default();
            let required: BTreeSet<String> = required
                .into_iter()
                .filter(|path| !optional(path))
                .collect();
            uses.push(((channel, locale.clone(), part), required.clone()));
            let variant = variants
                .entry((channel, locale))
                .or_insert_with(|| TemplateVariant {
                    parts: BTreeSet::new(),
                    required: BTreeSet::new(),
                });
            variant.parts.insert(part);
            variant.required.extend(required);
        }
        self.check_parts(folder, &variants);
        Some(Template {
            settings: Arc::new(settings?),
            variants,
            lonely_variables: lonely_variables(&uses),
        })
    }

    /// Compiles one file and returns the variables that it uses.
    fn compile(
        &mut self,
        name: &TemplateName,
        file_name: &str,
        path: &Path,
    ) -> Option<BTreeSet<String>> {
        let source = match read_capped(path) {
            Ok(source) if source.trim().is_empty() => {
                self.add_error(path, "is empty");
                return None;
            }
            Ok(source) => source,
            Err(reason) => {
                self.add_error(path, &reason);
                return None;
            }
        };
        if file_name.ends_with(".html") {
            let errors = super::links::find_unfiltered_urls(&source);
            self.errors.extend(
                errors
                    .into_iter()
                    .map(|(line, what)| format!("{}:{line}: {what}", path.display())),
            );
        }
        let key = format!("{}/{file_name}", name.as_str());
        if let Err(error) = self.environment.add_template_owned(key.clone(), source) {
            let line = error.line().unwrap_or(1);
            let detail = error
                .detail()
                .unwrap_or("is not a valid template")
                .to_owned();
            self.errors
                .push(format!("{}:{line}: {detail}", path.display()));
            return None;
        }
        let template = self.environment.get_template(&key).ok()?;
        let globals: BTreeSet<&str> = self.environment.globals().map(|(name, _)| name).collect();
        let used = template.undeclared_variables(true);
        if let Some(error) = unknown_name(&template, &used) {
            let line = error.line().unwrap_or(1);
            self.errors.push(format!(
                "{}:{line}: {}",
                path.display(),
                error.detail().unwrap_or("unknown name")
            ));
            return None;
        }
        Some(
            used.into_iter()
                .filter(|path| !globals.contains(path.as_str()))
                .collect(),
        )
    }

    fn check_parts(
        &mut self,
        folder: &Path,
        variants: &BTreeMap<(Channel, Locale), TemplateVariant>,
    ) {
        if variants.is_empty() {
            self.add_error(folder, "has no part such as email.en.html");
        }
        for ((channel, locale), variant) in variants {
            if let Some(part) = missing_part(*channel, &variant.parts) {
                let (channel, locale) = (channel.as_str(), locale.as_str());
                self.add_error(
                    folder,
                    &format!("lacks {channel}.{locale}.{}", part.as_str()),
                );
            }
        }
    }

    /// Returns name and path of every entry of a folder, sorted, without hidden files.
    fn entries(&mut self, folder: &Path) -> Vec<(String, std::path::PathBuf)> {
        let listing = match std::fs::read_dir(folder) {
            Ok(listing) => listing,
            Err(error) => {
                self.add_error(folder, &format!("cannot read: {error}"));
                return Vec::new();
            }
        };
        let mut entries: Vec<_> = listing
            .take(MAX_TEMPLATES)
            .filter_map(Result::ok)
            .map(|entry| {
                (
                    entry.file_name().to_string_lossy().into_owned(),
                    entry.path(),
                )
            })
            .filter(|(name, _)| !name.starts_with('.'))
            .collect();
        entries.sort();
        entries
    }

    fn add_error(&mut self, path: &Path, what: &str) {
        self.errors.push(format!("{}: {what}", path.display()));
    }
}

/// Returns the error for an unknown filter, test or function, which the engine reports only when it
/// is evaluated.
fn unknown_name(
    template: &minijinja::Template<'_, '_>,
    used: &HashSet<String>,
) -> Option<minijinja::Error> {
    let names = used.iter().filter_map(|path| path.split('.').next());
    let context: BTreeMap<&str, &str> = names.map(|name| (name, "text")).collect();
    let unknown = [
        ErrorKind::UnknownFilter,
        ErrorKind::UnknownTest,
        ErrorKind::UnknownFunction,
    ];
    template
        .render(context)
        .err()
        .filter(|error| unknown.contains(&error.kind()))
}

fn read_capped(path: &Path) -> Result<String, String> {
    let size = std::fs::metadata(path)
        .map_err(|error| format!("cannot read: {error}"))?
        .len();
    if size > MAX_FILE_BYTES {
        return Err(format!("is larger than {MAX_FILE_BYTES} bytes"));
    }
    std::fs::read_to_string(path).map_err(|error| format!("cannot read: {error}"))
}

/// Returns the parts that a variant of `channel` may have, the required ones first.
fn parts_of(channel: Channel) -> (&'static [TemplatePart], &'static [TemplatePart]) {
    use TemplatePart::{Html, Subject, Text, Title};
    match channel {
        Channel::Email => (&[Subject], &[Html, Text]),
        Channel::Sms => (&[Text], &[]),
        Channel::Push => (&[Title, Text], &[]),
    }
}

/// Returns the first part that a variant of `channel` requires and does not have. E-mail has HTML, or
/// text, or both.
fn missing_part(channel: Channel, parts: &BTreeSet<TemplatePart>) -> Option<TemplatePart> {
    let (required, choice) = parts_of(channel);
    let mut missing = required.iter().filter(|part| !parts.contains(part));
    let has_choice = choice.is_empty() || choice.iter().any(|part| parts.contains(part));
    missing
        .next()
        .or(choice.first().filter(|_| !has_choice))
        .copied()
}

fn parse_part(file_name: &str) -> Option<(Channel, Locale, TemplatePart)> {
    let components: Vec<&str> = file_name.split('.').collect();
    let [channel, locale, part] = components[..] else {
        return None;
    };
    let channel = Channel::ALL
        .into_iter()
        .find(|known| known.as_str() == channel)?;
    let (required, choice) = parts_of(channel);
    let part = required
        .iter()
        .chain(choice)
        .find(|known| known.as_str() == part)?;
    let canonical = Locale::parse(locale).filter(|parsed| parsed.as_str() == locale)?;
    Some((channel, canonical, *part))
}

fn is_optional(path: &str, optional: &BTreeSet<String>) -> bool {
    optional.contains(path)
        || path
            .split('.')
            .next()
            .is_some_and(|first| optional.contains(first))
}

impl TemplateSettings {
    fn read(root: &Object<'_>, name: &TemplateName) -> Option<Self> {
        let version = root.required("version", |field| field.integer(1..=u32::MAX));
        let optional = root
            .list("optional", |field| field.text(1..=64))
            .into_iter()
            .collect();
        let category = root.or("category", name.clone(), |field| {
            TemplateName::parse(field.string()?)
                .or_else(|| field.fail("invalid_format", "must be 1 to 64 of a-z, 0-9, - and _"))
        });
        let transactional = root.or("transactional", false, |field| {
            let transactional = field.boolean()?;
            if transactional && root.has("category") {
                return field.fail("not_allowed", "a transactional template has no category");
            }
            Some(transactional)
        });
        let user_variables = root
            .list("user_variables", |field| field.text(1..=64))
            .into_iter()
            .collect();
        let unverified = root.list("unverified_addresses", |field| field.one_of(Channel::NAMES));
        let unverified_addresses = PerChannel::from_fn(|channel| unverified.contains(&channel));
        Some(Self {
            version: version?,
            optional,
            category: (!transactional).then(|| category.as_str().to_owned()),
            user_variables,
            unverified_addresses,
        })
    }
}
