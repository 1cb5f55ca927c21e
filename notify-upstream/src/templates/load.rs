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
            loader.add_error(folder, "no template found");
        }
        if !loader.errors.is_empty() {
            return Err(loader.errors.join("\n"));
        }
        Ok(Self {
            environment: loader.environment,
            by_name,
            default_locale,
        })
    }
}

/// Returns a hash of the names, sizes and modification times of the files of all templates, which
/// changes with their contents.
pub(crate) fn fingerprint(folder: &Path) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let entries = |folder: &Path| {
        let found = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let paths = found.take(MAX_TEMPLATES).map(|entry| entry.path());
        let mut paths: Vec<_> = paths.collect();
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
    environment.set_auto_escape_callback(|name| match name.ends_with(".html") {
        true => AutoEscape::Html,
        false => AutoEscape::None,
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
            let Some(name) = TemplateName::parse(&file_name) else {
                let what = "is not a template name: 1 to 64 of a-z, 0-9, - and _";
                self.add_error(&path, what);
                continue;
            };
            let template = self.load_template(&name, &path);
            templates.extend(template.map(|template| (name, template)));
        }
        templates
    }

    fn load_template(&mut self, name: &TemplateName, folder: &Path) -> Option<Template> {
        // Without settings the parts are still compiled, so that all errors are reported together.
        let read = |root: &Object<'_>| TemplateSettings::read(root, name);
        let settings = config::load(&folder.join("template.toml"), read);
        let settings = settings.map_err(|exit| self.errors.push(exit.message().to_owned()));
        let is_required = |path: &String| {
            let settings = settings.as_ref();
            settings.is_ok_and(|settings| !is_optional(path, &settings.optional))
        };
        let mut variants: BTreeMap<_, TemplateVariant> = BTreeMap::new();
        let mut uses = Vec::new();
        for (file_name, path) in self.entries(folder) {
            if file_name == "template.toml" {
                continue;
            }
            let Some((channel, locale, part)) = parse_part(&file_name) else {
                let what =
                    "is not named {channel}.{locale}.{part}, such as email.en.html or sms.de.txt";
                self.add_error(&path, what);
                continue;
            };
            let used = self.compile(&format!("{}/{file_name}", name.as_str()), &path);
            let used = used.unwrap_or_else(|what| {
                self.errors.push(format!("{}{what}", path.display()));
                HashSet::new()
            });
            let required: BTreeSet<String> = used.into_iter().filter(is_required).collect();
            uses.push(((channel, locale.clone(), part), required.clone()));
            let variant = variants.entry((channel, locale)).or_default();
            variant.parts.insert(part);
            variant.required.extend(required);
        }
        self.check_parts(folder, &variants);
        Some(Template {
            settings: Arc::new(settings.ok()?),
            variants,
            lonely_variables: lonely_variables(&uses),
        })
    }

    /// Compiles one file and returns the variables that it uses.
    ///
    /// # Errors
    /// What follows the path in the message: the line and the reason.
    fn compile(&mut self, key: &str, path: &Path) -> Result<HashSet<String>, String> {
        let source = read_capped(path).map_err(|reason| format!(": {reason}"))?;
        if key.ends_with(".html") {
            let errors = super::links::find_unfiltered_urls(&source).into_iter();
            let errors = errors.map(|(line, what)| format!("{}:{line}: {what}", path.display()));
            self.errors.extend(errors);
        }
        let added = self.environment.add_template_owned(key.to_owned(), source);
        added.map_err(|error| at_line(&error))?;
        let template = self.environment.get_template(key);
        let template = template.map_err(|error| at_line(&error))?;
        let mut used = template.undeclared_variables(true);
        if let Some(error) = unknown_name(&template, &used) {
            return Err(at_line(&error));
        }
        for (name, _) in self.environment.globals() {
            used.remove(name);
        }
        Ok(used)
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
                let what = format!("lacks {channel}.{locale}.{}", part.as_str());
                self.add_error(folder, &what);
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
        let entries = listing.take(MAX_TEMPLATES).flatten().map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, entry.path())
        });
        let mut entries: Vec<_> = entries.filter(|(name, _)| !name.starts_with('.')).collect();
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
    use ErrorKind::{UnknownFilter, UnknownFunction, UnknownTest};
    let unknown = [UnknownFilter, UnknownTest, UnknownFunction];
    let error = template.render(context).err();
    error.filter(|error| unknown.contains(&error.kind()))
}

/// Returns the line and the reason of an error.
fn at_line(error: &minijinja::Error) -> String {
    let line = error.line().unwrap_or(1);
    format!(
        ":{line}: {}",
        error.detail().unwrap_or("is not a valid template")
    )
}

fn read_capped(path: &Path) -> Result<String, String> {
    let unreadable = |error| format!("cannot read: {error}");
    if std::fs::metadata(path).map_err(unreadable)?.len() > MAX_FILE_BYTES {
        return Err(format!("is larger than {MAX_FILE_BYTES} bytes"));
    }
    let source = std::fs::read_to_string(path).map_err(unreadable)?;
    if source.trim().is_empty() {
        return Err("is empty".to_owned());
    }
    Ok(source)
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
    let choice = choice.first().filter(|_| !has_choice);
    missing.next().or(choice).copied()
}

fn parse_part(file_name: &str) -> Option<(Channel, Locale, TemplatePart)> {
    let components: Vec<&str> = file_name.split('.').collect();
    let [channel, locale, part] = components[..] else {
        return None;
    };
    let mut channels = Channel::ALL.into_iter();
    let channel = channels.find(|known| known.as_str() == channel)?;
    let (required, choice) = parts_of(channel);
    let mut parts = required.iter().chain(choice);
    let part = parts.find(|known| known.as_str() == part)?;
    let canonical = Locale::parse(locale).filter(|parsed| parsed.as_str() == locale)?;
    Some((channel, canonical, *part))
}

fn is_optional(path: &str, optional: &BTreeSet<String>) -> bool {
    let first = path.split('.').next();
    optional.contains(path) || first.is_some_and(|first| optional.contains(first))
}

impl TemplateSettings {
    fn read(root: &Object<'_>, name: &TemplateName) -> Option<Self> {
        let version = root.required("version", |field| field.integer(1..=u32::MAX));
        let optional = root.list("optional", |field| field.text(1..=64));
        let category = root.or("category", name.clone(), TemplateName::read);
        let transactional = root.or("transactional", false, |field| {
            let transactional = field.boolean()?;
            if transactional && root.has("category") {
                return field.fail("not_allowed", "a transactional template has no category");
            }
            Some(transactional)
        });
        let user_variables = root.list("user_variables", |field| field.text(1..=64));
        let unverified = root.list("unverified_addresses", |field| field.one_of(Channel::NAMES));
        let unverified_addresses = PerChannel::from_fn(|channel| unverified.contains(&channel));
        Some(Self {
            version: version?,
            optional: optional.into_iter().collect(),
            category: (!transactional).then(|| category.as_str().to_owned()),
            user_variables: user_variables.into_iter().collect(),
            unverified_addresses,
        })
    }
}
