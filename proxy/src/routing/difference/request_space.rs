//! Representatives of all requests that two configurations can tell apart.

use std::collections::BTreeSet;

use postern_http::message::target::RequestTarget;
use url::form_urlencoded;

use crate::config::{
    HostPattern, MatchCondition, MethodSet, PathPattern, PathSegment, Route, RoutePattern,
};

/// Maximum number of representatives in a command. A configuration needs about one for each segment
/// of its templates.
pub(super) const MAX_REQUESTS: usize = 1_000_000;

/// Returns methods of representatives: the common ones, those that a route names, and one for all
/// others.
pub(in crate::routing) fn methods(old: &[Route], new: &[Route]) -> Vec<&'static str> {
    let sets = old.iter().chain(new).map(|route| route.pattern.methods);
    let named = sets.filter(|set| *set != MethodSet::ALL);
    let all = named.fold(MethodSet::COMMON, MethodSet::union);
    all.names().chain(["OTHER"]).collect()
}

/// A request without its method. Every request with the same matching routes in both
/// configurations is represented by one of these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Representative {
    /// The number of conditions that it satisfies, so that simple examples come first.
    conditions: usize,
    path_length: usize,
    names_host: bool,
    pub(super) path: String,
    pub(super) host: String,
    /// Names and values of header fields.
    pub(super) headers: Vec<(String, String)>,
    /// The query without the `?`; empty for none.
    pub(super) query: String,
}

/// The space of requests, callers and client addresses is too large to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the routes distinguish more than {0} kinds of requests, callers and addresses")]
pub struct TooManyRequests(pub(super) usize);

/// A condition on a header field (`false`) or a query parameter (`true`).
type Atom = (bool, MatchCondition);

/// Returns representatives of all requests, at most `max`, simple ones first.
///
/// A request is characterised by the patterns that match its host, the path of literal and other
/// segments, and the conditions that it satisfies; these are enumerated separately.
pub(super) fn representatives(
    old: &[Route],
    new: &[Route],
    max: usize,
) -> Result<Vec<Representative>, TooManyRequests> {
    let patterns: Vec<&RoutePattern> = old.iter().chain(new).map(|route| &route.pattern).collect();
    let fresh = fresh_word(&patterns);
    let mut found = Vec::new();
    for (host, names_host) in hosts(&patterns, &fresh) {
        let here: Vec<&RoutePattern> = patterns
            .iter()
            .copied()
            .filter(|pattern| matches_host(pattern, &host))
            .collect();
        let templates: Vec<&PathPattern> = here.iter().map(|pattern| &pattern.path).collect();
        let mut paths = PathSpace {
            fresh: &fresh,
            max,
            paths: Vec::new(),
        };
        paths.extend(&templates, 0, &mut String::new())?;
        for path in paths.paths {
            let conditions = condition_sets(&here, &path, max)?;
            if found.len() + conditions.len() > max {
                return Err(TooManyRequests(max));
            }
            for atoms in conditions {
                let (headers, query) = fields(&atoms, &fresh);
                found.push(Representative {
                    conditions: atoms.len(),
                    path_length: path.len(),
                    names_host,
                    path: path.clone(),
                    host: host.clone(),
                    headers,
                    query,
                });
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Returns a word with which no literal segment, label of a host or value of a condition begins.
fn fresh_word(patterns: &[&RoutePattern]) -> String {
    let mut taken = BTreeSet::new();
    for pattern in patterns {
        taken.extend(pattern.path.segments.iter().map(|segment| match segment {
            PathSegment::Literal(text) | PathSegment::Param(text) => text.as_str(),
        }));
        for host in &pattern.hosts {
            let (HostPattern::Exact(name) | HostPattern::Subdomains(name)) = host;
            taken.extend(name.split('.'));
        }
        let conditions = pattern.headers.iter().chain(&pattern.queries);
        taken.extend(conditions.filter_map(|condition| condition.value.as_deref()));
    }
    let mut word = "x".to_owned();
    let begins = |it: &str, word: &str| it.to_ascii_lowercase().starts_with(word);
    while taken.iter().any(|it| begins(it, &word)) {
        word.push('x');
    }
    word
}

/// Returns hosts that match different sets of patterns, and whether a pattern names them.
fn hosts(patterns: &[&RoutePattern], fresh: &str) -> BTreeSet<(String, bool)> {
    let mut hosts = BTreeSet::from([(format!("{fresh}.test"), false)]);
    for host in patterns.iter().flat_map(|pattern| &pattern.hosts) {
        hosts.insert(match host {
            HostPattern::Exact(name) => (name.clone(), true),
            HostPattern::Subdomains(name) => (format!("{fresh}.{name}"), true),
        });
    }
    hosts
}

fn matches_host(pattern: &RoutePattern, host: &str) -> bool {
    pattern.hosts.is_empty() || pattern.hosts.iter().any(|it| it.matches(host))
}

/// The paths that templates can tell apart.
struct PathSpace<'a> {
    fresh: &'a str,
    max: usize,
    paths: Vec<String>,
}

impl PathSpace<'_> {
    /// Adds the paths that begin with `path`, which has `depth` segments and which `templates`
    /// match so far.
    fn extend(
        &mut self,
        templates: &[&PathPattern],
        depth: usize,
        path: &mut String,
    ) -> Result<(), TooManyRequests> {
        if depth > 0 && is_canonical(path) {
            if self.paths.len() >= self.max {
                return Err(TooManyRequests(self.max));
            }
            self.paths.push(path.clone());
        }
        // Longer paths are alike if each template has ended with `/*` above this depth.
        if depth > 0
            && templates
                .iter()
                .all(|template| template.segments.len() < depth)
        {
            return Ok(());
        }
        for choice in self.choices(templates, depth, path) {
            let next: Vec<&PathPattern> = templates
                .iter()
                .copied()
                .filter(|template| template.accepts(depth, &choice))
                .collect();
            let length = path.len();
            path.push('/');
            path.push_str(&choice);
            self.extend(&next, depth + 1, path)?;
            path.truncate(length);
        }
        Ok(())
    }

    /// Returns the segments at a depth that templates can tell apart. Segments that no template names
    /// differ from each other, as the owners of objects do.
    fn choices(&self, templates: &[&PathPattern], depth: usize, path: &str) -> BTreeSet<String> {
        let literals = templates
            .iter()
            .filter_map(|it| match it.segments.get(depth) {
                Some(PathSegment::Literal(text)) => Some((text, it.ignore_case)),
                Some(PathSegment::Param(_)) | None => None,
            });
        let names: BTreeSet<String> = literals.clone().map(|(text, _)| text.clone()).collect();
        let in_any_case = literals.filter(|(_, ignore_case)| *ignore_case);
        let respelled = in_any_case.filter_map(|(text, _)| respelled(text, &names));
        let count = path
            .split('/')
            .filter(|it| it.starts_with(self.fresh))
            .count();
        let fresh = match count {
            0 => self.fresh.to_owned(),
            count => format!("{}{}", self.fresh, count + 1),
        };
        let mut choices: BTreeSet<String> = respelled.chain([String::new(), fresh]).collect();
        choices.extend(names);
        choices
    }
}

/// Returns the text with letters in another case, such that it is none of `names`.
fn respelled(text: &str, names: &BTreeSet<String>) -> Option<String> {
    let flipped = (0..text.len()).map(|at| {
        let flip = |(index, byte): (usize, u8)| match index == at {
            true if byte.is_ascii_lowercase() => byte.to_ascii_uppercase(),
            true => byte.to_ascii_lowercase(),
            false => byte,
        };
        text.bytes().enumerate().map(flip).map(char::from).collect()
    });
    let mut all = std::iter::once(text.to_ascii_uppercase()).chain(flipped);
    all.find(|it| !names.contains(it))
}

/// Returns whether a request can have this path after it was parsed.
fn is_canonical(path: &str) -> bool {
    RequestTarget::parse(path.as_bytes()).is_ok_and(|target| target.path == path)
}

/// Returns the sets of conditions that requests with this path can satisfy: the unions of the
/// conditions of some matching routes. A request that satisfies more satisfies no other route.
fn condition_sets(
    patterns: &[&RoutePattern],
    path: &str,
    max: usize,
) -> Result<BTreeSet<BTreeSet<Atom>>, TooManyRequests> {
    let mut sets = BTreeSet::from([BTreeSet::new()]);
    for pattern in patterns {
        if pattern.condition_count() == 0 || !pattern.path.matches(path) {
            continue;
        }
        let atoms = atoms(pattern);
        let with: Vec<BTreeSet<Atom>> = sets.iter().map(|set| set | &atoms).collect();
        sets.extend(with);
        if sets.len() > max {
            return Err(TooManyRequests(max));
        }
    }
    Ok(sets)
}

/// Returns the host, the header fields and the query of a request that a pattern matches.
pub(in crate::routing) fn fields_of(
    pattern: &RoutePattern,
) -> (String, Vec<(String, String)>, String) {
    let fresh = fresh_word(&[pattern]);
    let (headers, query) = fields(&atoms(pattern), &fresh);
    let host = hosts(&[pattern], &fresh).into_iter();
    let host = host.max_by_key(|(_, names_host)| *names_host);
    (host.unwrap_or_default().0, headers, query)
}

fn atoms(pattern: &RoutePattern) -> BTreeSet<Atom> {
    let headers = pattern.headers.iter().map(|it| (false, it.clone()));
    let queries = pattern.queries.iter().map(|it| (true, it.clone()));
    headers.chain(queries).collect()
}

/// Returns the header fields and the query of a request that satisfies exactly these conditions.
fn fields(atoms: &BTreeSet<Atom>, fresh: &str) -> (Vec<(String, String)>, String) {
    let mut headers = Vec::new();
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (is_query, MatchCondition { name, value }) in atoms {
        let value = match value {
            Some(value) => value,
            // Satisfied by the value of another condition.
            None if atoms
                .iter()
                .any(|(kind, it)| kind == is_query && it.name == *name && it.value.is_some()) =>
            {
                continue;
            }
            None => fresh,
        };
        if *is_query {
            query.append_pair(name, value);
        } else {
            headers.push((name.clone(), value.to_owned()));
        }
    }
    (headers, query.finish())
}
