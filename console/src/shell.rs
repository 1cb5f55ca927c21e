//! The static part of every page, the assets, and the header fields that restrict them.
//!
//! The shell contains no data: anybody may load it. Assets are embedded in the program and named by
//! the hash of their contents. Depends on `widgets`.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use maud::{DOCTYPE, Markup, html};
use postern_core::Code;
use sha2::{Digest, Sha256};

/// Nothing but the console's own scripts, styles and connections. Forms are handled by the script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self'; frame-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// An embedded file.
struct Asset {
    name: &'static str,
    media_type: &'static str,
    text: &'static str,
    /// Path with the hash of the contents.
    path: String,
}

/// Embeds files of the folder `assets`.
macro_rules! assets {
    ($($name:literal)+) => { vec![$(Asset::new($name, include_str!(concat!("../assets/", $name)))),+] };
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    assets! { "console.js" "pages.js" "requests.js" "configuration.js" "palette.js" "style.css" "icon.svg" }
});

/// The scripts of pages, each with a function `enhance`.
const PAGE_SCRIPTS: [&str; 4] = ["pages.js", "requests.js", "configuration.js", "palette.js"];

/// The pages with charts, among which the script carries their time range.
const CHART_PAGES: [&str; 2] = ["/", "/notifications"];

/// A page of the navigation: path, title, the key behind `g`, and what is done there.
pub(crate) type Page = (&'static str, &'static str, &'static str, &'static str);

/// Defines the sections of the navigation: heading, and pages with the parts of [`Page`].
macro_rules! navigation {
    ($($heading:literal { $($path:literal $title:literal $key:literal $tasks:literal;)+ })+) => {
        const NAVIGATION: &[(&str, &[Page])] = &[$(($heading, &[$(($path, $title, $key, $tasks)),+])),+];
    };
}

navigation! {
    "" {
        "/" "Overview" "o" "what is wrong now";
        "/processes" "Processes" "v" "versions, replicas, readiness, keys of issuers";
    }
    "Gateway" {
        "/requests" "Requests" "r" "why was it rejected, which user sends the most";
        "/routes" "Routes" "t" "who may do what, explain a request";
        "/upstreams" "Upstreams" "u" "which address is down";
        "/configuration" "Configuration" "c" "edit, check and save the file";
        "/history" "History" "h" "what changed in the configuration, roll back";
    }
    "Notifications" {
        "/notifications" "Notifications" "n" "retry or cancel one";
        "/dead-letters" "Dead letters" "d" "why did a mail not arrive, retry";
        "/providers" "Providers" "p" "pause or resume, send a test message";
        "/templates" "Templates" "m" "preview a message";
        "/suppression" "Suppression" "x" "send to an address again";
    }
    "Sign-in" {
        "/users" "Users" "w" "disable, sign out, reset a password, groups";
        "/sign-ins" "Sign-ins" "s" "why did a sign-in fail";
    }
}

/// Returns the pages of all sections.
pub(crate) fn pages() -> impl Iterator<Item = &'static Page> {
    NAVIGATION.iter().flat_map(|(_, pages)| *pages)
}

/// Returns the title of a page of the navigation.
pub(crate) fn title(path: &str) -> &'static str {
    let found = pages().find(|(known, ..)| *known == path);
    found.map_or("", |(_, title, ..)| title)
}

// === impl Asset ===

impl Asset {
    fn new(name: &'static str, text: &'static str) -> Self {
        let hash = hex::encode(&Sha256::digest(text)[..8]);
        Self {
            name,
            media_type: match name.rsplit('.').next() {
                Some("js") => "text/javascript; charset=utf-8",
                Some("css") => "text/css; charset=utf-8",
                Some(_) | None => "image/svg+xml",
            },
            text,
            path: format!("/assets/{hash}/{name}"),
        }
    }
}

pub(crate) fn asset_path(name: &str) -> &'static str {
    let found = ASSETS.iter().find(|asset| asset.name == name);
    found.map_or("", |asset| asset.path.as_str())
}

/// Returns an asset, which browsers may keep, or 404.
pub(crate) fn asset(path: &str) -> Response {
    let found = ASSETS.iter().find(|asset| asset.path == path);
    let Some(asset) = found else {
        return Code::NotFound.into_response();
    };
    let headers = [
        (CONTENT_TYPE, asset.media_type),
        (CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, asset.text).into_response()
}

/// Returns the shell: navigation, palette and an empty main part. `command` prints a one-time link.
pub(crate) fn page(command: Option<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Postern" }
                link rel="icon" type="image/svg+xml" href=(asset_path("icon.svg"));
                link rel="stylesheet" href=(asset_path("style.css"));
                script type="module" src=(asset_path("console.js")) data-pages=(PAGE_SCRIPTS.map(asset_path).join(" ")) {}
            }
            body {
                a.skip href="#main" { "Skip to contents" }
                nav.side #sections aria-label="Sections" hidden {
                    div.brand { img src=(asset_path("icon.svg")) width="28" height="28" alt=""; span { "Postern" small { "console" } } }
                    @for (heading, pages) in NAVIGATION {
                        @if !heading.is_empty() { h2 { (heading) } }
                        @for (path, title, key, _) in *pages { a href=(path) data-key=(key) data-charts[CHART_PAGES.contains(path)] aria-keyshortcuts={ "g " (key) } { (title) } }
                    }
                }
                div.page {
                    header.top hidden {
                        button type="button" #menu aria-controls="sections" aria-expanded="false" { "Menu" }
                        button.field type="button" #open-palette aria-haspopup="dialog" aria-keyshortcuts="Control+K Meta+K /" { span { "Search or go to" } kbd { "Ctrl K" } }
                        span.who #as-of {}
                        span.who #who {}
                        button type="button" #open-keys aria-haspopup="dialog" aria-keyshortcuts="?" aria-label="Keys" { "?" }
                        button type="button" #sign-out { "Sign out" }
                    }
                    div.stale #stale role="alert" hidden {}
                    main #main tabindex="-1" {
                        noscript { p { "The console needs JavaScript." } }
                    }
                    div.toast #result role="status" aria-live="polite" {}
                }
                (dialogs())
                template #sign-in-page { (sign_in(command)) }
            }
        }
    }
}

/// Returns the question before a change, the command palette, whose options the script fetches, and
/// the list of keys.
fn dialogs() -> Markup {
    html! {
        dialog #confirm aria-labelledby="confirm-text" {
            p #confirm-text {}
            div.buttons {
                button type="button" value="no" { "Cancel" }
                button.primary type="button" value="yes" { "Confirm" }
            }
        }
        dialog #palette aria-label="Search or go to" {
            input type="text" role="combobox" aria-expanded="true" aria-autocomplete="list" aria-controls="palette-options"
                autocomplete="off" spellcheck="false" aria-label="Page, task, route, e-mail address or id"
                placeholder="Page, task, route, e-mail address or id";
            div #palette-options role="listbox" aria-label="Results" {}
        }
        dialog #keys aria-labelledby="keys-title" {
            h2 #keys-title { "Keys" }
            dl.keys {
                @for (key, meaning) in [("Ctrl K", "Search or go to"), ("/", "The same"), ("?", "This list"), ("↓ ↑", "Next or previous request"), ("← →", "Next or previous value of a chart"), ("Esc", "Close what is open")] {
                    div { dt { kbd { (key) } } dd { (meaning) } }
                }
                @for (_, title, key, _) in pages() { div { dt { kbd { "g" } " " kbd { (key) } } dd { (title) } } }
            }
            form.buttons method="dialog" { button type="submit" { "Close" } }
        }
    }
}

fn sign_in(command: Option<&str>) -> Markup {
    html! {
        div.sign-in {
            h1 tabindex="-1" { "Sign in to Postern" }
            p.muted #sign-in-reason role="alert" {}
            @if let Some(command) = command { div.panel {
                p { "To sign in as operator, print a link on the machine that runs Postern, and open it:" }
                pre.code tabindex="0" { (command) }
            } }
            form.panel.stack #sign-in {
                label { "E-mail address" input type="email" name="email" autocomplete="username" required; }
                label { "Password" input type="password" name="password" autocomplete="current-password" required; }
                button.primary type="submit" { "Sign in" }
            }
            form.panel.stack #token-sign-in {
                label { "Access token" input type="password" name="token" autocomplete="off" required aria-describedby="token-hint"; }
                p.muted #token-hint { "Of a service, or of a person whose sign-in has a second step. It stays in this tab." }
                button type="submit" { "Use this token" }
            }
        }
    }
}

/// Adds the header fields that every response has.
pub(crate) fn protect(mut response: Response) -> Response {
    let fields = [
        ("content-security-policy", CONTENT_SECURITY_POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("x-frame-options", "DENY"),
        ("cache-control", "no-store"),
    ];
    let headers = response.headers_mut();
    for (name, value) in fields {
        // A frame has its own policy; assets are kept.
        let field = headers.entry(HeaderName::from_static(name));
        field.or_insert(HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::RangeInclusive;

    use postern_core::hidden_characters::is_hidden;

    use super::pages;

    /// Returns the ranges of the character class `HIDDEN` of `console.js`, without `\p{Cc}`.
    fn hidden_ranges() -> Vec<RangeInclusive<u32>> {
        let script = include_str!("../assets/console.js");
        let (_, class) = script
            .split_once(r"(?![\n\r\t])[\p{Cc}")
            .expect("the class");
        let (class, _) = class.split_once(']').expect("its end");
        let number = |text: &str| {
            let digits = text.trim_matches(['{', '}']);
            u32::from_str_radix(digits, 16).expect("a number")
        };
        let members = class.replace(r"-\u", "-").replacen(r"\u", "", 1);
        let members = members
            .split(r"\u")
            .map(|member| match member.split_once('-') {
                Some((first, last)) => number(first)..=number(last),
                None => number(member)..=number(member),
            });
        members.collect()
    }

    #[test]
    fn each_page_has_a_key_of_its_own() {
        let keys: Vec<&str> = pages().map(|(_, _, key, _)| *key).collect();
        let different: BTreeSet<&&str> = keys.iter().collect();
        assert_eq!(different.len(), keys.len(), "{keys:?}");
        // The second key of a page must not be the first key of all.
        assert!(!keys.contains(&"g"), "{keys:?}");
    }

    #[test]
    fn script_and_server_hide_the_same_characters() {
        let ranges = hidden_ranges();
        assert!(ranges.len() > 10, "{ranges:x?}");
        for character in '\0'..=char::MAX {
            let is_listed = ranges.iter().any(|range| range.contains(&character.into()));
            let is_break = ['\n', '\r', '\t'].contains(&character);
            let of_script = !is_break && (character.is_control() || is_listed);
            assert_eq!(
                of_script,
                is_hidden(character),
                "{}",
                character.escape_unicode()
            );
        }
    }
}
