//! Route lookup by host and path.

use std::borrow::Cow;

use ahash::AHashMap;
use postern_http::message::host::{domains, host_name};

use crate::config::{HostPattern, PathSegment, RoutePattern};
use crate::routing::router::{RouteIndex, RouteRequest};

#[derive(Debug, Default)]
pub(super) struct HostTries {
    /// Whether a route ignores case: the literals are then in lower case, and a leaf has routes
    /// whose path differs in case.
    pub(super) ignore_case: bool,
    exact: AHashMap<Box<str>, PathTrie>,
    subdomains: AHashMap<Box<str>, PathTrie>,
    any: PathTrie,
}

/// A trie of path segments. Nodes refer to each other by position; the root is at 0.
#[derive(Debug)]
struct PathTrie(Vec<TrieNode>);

#[derive(Debug, Default)]
struct TrieNode {
    /// Child nodes of literal segments.
    literals: AHashMap<Box<str>, usize>,
    /// Child node of a parameter, which matches any segment that is not empty.
    param: Option<usize>,
    /// Routes whose template ends at this node.
    exact: Vec<RouteIndex>,
    /// Routes whose template ends at this node with `/*`, which take the path of the node as well.
    prefix: Vec<RouteIndex>,
}

type LeafVisitor<'v> = dyn FnMut(&[RouteIndex]) -> Option<RouteIndex> + 'v;

impl HostTries {
    pub(super) fn new(ignore_case: bool) -> Self {
        Self {
            ignore_case,
            ..Self::default()
        }
    }

    pub(super) fn insert(&mut self, index: RouteIndex, pattern: &RoutePattern) {
        let ignore_case = self.ignore_case;
        if pattern.hosts.is_empty() {
            self.any.insert(index, pattern, ignore_case);
        }
        for host in &pattern.hosts {
            let trie = match host {
                HostPattern::Exact(name) => self.exact.entry(name.as_str().into()).or_default(),
                HostPattern::Subdomains(name) => {
                    self.subdomains.entry(name.as_str().into()).or_default()
                }
            };
            trie.insert(index, pattern, ignore_case);
        }
    }

    pub(super) fn accepts_host(&self, host: &str) -> bool {
        if !self.any.is_empty() {
            return true;
        }
        let host = host_name(host);
        let is_below = |domain: &str| self.subdomains.contains_key(domain);
        self.exact.contains_key(&*host) || domains(&host).any(is_below)
    }

    pub(super) fn sort_leaves(&mut self, patterns: &[RoutePattern]) {
        let tries = self
            .exact
            .values_mut()
            .chain(self.subdomains.values_mut())
            .chain([&mut self.any]);
        for node in tries.flat_map(|trie| &mut trie.0) {
            for leaf in [&mut node.exact, &mut node.prefix] {
                leaf.sort_by_key(|index| {
                    let pattern = &patterns[*index];
                    let conditions = usize::MAX - pattern.condition_count();
                    (pattern.path.ignore_case, conditions, *index)
                });
            }
        }
    }

    /// Visits the matching leaves, most specific first, until `visit` returns a route.
    pub(super) fn walk(
        &self,
        request: &RouteRequest<'_>,
        visit: &mut LeafVisitor<'_>,
    ) -> Option<RouteIndex> {
        let path = match self.ignore_case {
            true => Cow::Owned(request.path.to_ascii_lowercase()),
            false => Cow::Borrowed(request.path),
        };
        let path = path.strip_prefix('/');
        if !(self.exact.is_empty() && self.subdomains.is_empty()) {
            let host = host_name(request.host);
            let below = domains(&host).map(|domain| self.subdomains.get(domain));
            let named = std::iter::once(self.exact.get(&*host)).chain(below);
            let found = named.flatten().find_map(|trie| trie.walk(0, path, visit));
            if found.is_some() {
                return found;
            }
        }
        self.any.walk(0, path, visit)
    }
}

impl Default for PathTrie {
    fn default() -> Self {
        Self(vec![TrieNode::default()])
    }
}

impl PathTrie {
    fn is_empty(&self) -> bool {
        let is_leaf = |node: &TrieNode| !(node.exact.is_empty() && node.prefix.is_empty());
        !self.0.iter().any(is_leaf)
    }

    fn insert(&mut self, index: RouteIndex, pattern: &RoutePattern, ignore_case: bool) {
        let mut at = 0;
        for segment in &pattern.path.segments {
            at = match segment {
                PathSegment::Literal(text) if ignore_case => {
                    self.literal_child(at, &text.to_ascii_lowercase())
                }
                PathSegment::Literal(text) => self.literal_child(at, text),
                PathSegment::Param(_) => self.param_child(at),
            };
        }
        let node = &mut self.0[at];
        if pattern.path.prefix {
            node.prefix.push(index);
        } else {
            node.exact.push(index);
        }
    }

    fn literal_child(&mut self, at: usize, text: &str) -> usize {
        let next = self.0.len();
        let child = *self.0[at].literals.entry(text.into()).or_insert(next);
        if child == next {
            self.0.push(TrieNode::default());
        }
        child
    }

    fn param_child(&mut self, at: usize) -> usize {
        let next = self.0.len();
        let child = *self.0[at].param.get_or_insert(next);
        if child == next {
            self.0.push(TrieNode::default());
        }
        child
    }

    /// Visits the matching leaves in the subtree of node `at`: literal segments before parameters,
    /// parameters before `/*`, which matches nothing as well. `rest` is the path below the node without its leading slash, or
    /// `None` at the end of the path. The recursion depth is bounded by the templates.
    fn walk(
        &self,
        at: usize,
        rest: Option<&str>,
        visit: &mut LeafVisitor<'_>,
    ) -> Option<RouteIndex> {
        let node = &self.0[at];
        let Some(rest) = rest else {
            return visit(&node.exact).or_else(|| visit(&node.prefix));
        };
        let (segment, next) = match rest.bytes().position(|byte| byte == b'/') {
            Some(slash) => (&rest[..slash], Some(&rest[slash + 1..])),
            None => (rest, None),
        };
        let literal = node
            .literals
            .get(segment)
            .and_then(|child| self.walk(*child, next, visit));
        if literal.is_some() {
            return literal;
        }
        let param = node
            .param
            .filter(|_| !segment.is_empty())
            .and_then(|child| self.walk(child, next, visit));
        if param.is_some() {
            return param;
        }
        if node.prefix.is_empty() {
            None
        } else {
            visit(&node.prefix)
        }
    }
}
