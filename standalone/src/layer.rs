//! The shipped configuration files with this machine's addresses in them.
//!
//! Standalone reads the very files that the separate processes read, so that routes and defaults are the same in
//! both; only values are replaced, in the parsed tree and not in the text.

use postern_common::config::describe;
use postern_common::decode::{Mistakes, Node, Object, Value, toml};
use postern_common::exit::Exit;

/// A configuration whose values can be replaced.
#[derive(Debug)]
pub(crate) struct Layer {
    name: &'static str,
    text: &'static str,
    root: Node,
}

// === impl Layer ===

impl Layer {
    /// Parses a shipped file; `name` is what messages call it.
    ///
    /// # Errors
    /// 64, with every mistake.
    pub(crate) fn of(name: &'static str, text: &'static str) -> Result<Self, Exit> {
        let mistakes = Mistakes::default();
        let root = toml(text, &mistakes);
        let root = mistakes.finish(root).map_err(|all| Exit::usage(describe(name, text, &all)))?;
        Ok(Self { name, text, root })
    }

    /// Sets the value at a path of table names, making the tables that are not there; in a list of tables a name
    /// is the value of its key `name`.
    pub(crate) fn set(mut self, path: &[&str], value: impl Into<Leaf>) -> Self {
        let Leaf(value) = value.into();
        set(&mut self.root, path, Some(value));
        self
    }

    /// Removes the value at a path, so that its default holds.
    pub(crate) fn unset(mut self, path: &[&str]) -> Self {
        set(&mut self.root, path, None);
        self
    }

    /// Reads the result.
    ///
    /// # Errors
    /// 64, with every mistake.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Exit> {
        let mistakes = Mistakes::default();
        let value = mistakes.object(&self.root, read);
        mistakes.finish(value).map_err(|all| Exit::usage(describe(self.name, self.text, &all)))
    }
}

fn set(node: &mut Node, path: &[&str], value: Option<Value>) {
    let Some((first, rest)) = path.split_first() else { return };
    let offset = node.offset;
    match &mut node.value {
        Value::Object(entries) => match (rest, value) {
            ([], None) => entries.retain(|(name, _)| name != first),
            ([], Some(value)) => *entry(entries, first, offset) = Node { value, offset },
            (_, value) => set(entry(entries, first, offset), rest, value),
        },
        // One of several tables is meant by its `name`.
        Value::Array(items) => {
            if let Some(item) = items.iter_mut().find(|item| is_named(item, first)) {
                set(item, rest, value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::String(_) => {}
    }
}

fn is_named(node: &Node, name: &str) -> bool {
    let Value::Object(entries) = &node.value else { return false };
    entries.iter().any(|(key, node)| key == "name" && node.value == Value::String(name.to_owned()))
}

/// The entry of this name; an empty table if it was not there.
fn entry<'a>(entries: &'a mut Vec<(String, Node)>, name: &str, offset: usize) -> &'a mut Node {
    let at = entries.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
        entries.push((name.to_owned(), Node { value: Value::Object(Vec::new()), offset }));
        entries.len() - 1
    });
    &mut entries[at].1
}

/// A value for [`Layer::set`].
#[derive(Debug)]
pub(crate) struct Leaf(Value);

impl From<&str> for Leaf {
    fn from(text: &str) -> Self {
        Self(Value::String(text.to_owned()))
    }
}

impl From<String> for Leaf {
    fn from(text: String) -> Self {
        Self(Value::String(text))
    }
}

impl From<std::net::SocketAddr> for Leaf {
    fn from(address: std::net::SocketAddr) -> Self {
        address.to_string().into()
    }
}

impl From<bool> for Leaf {
    fn from(flag: bool) -> Self {
        Self(Value::Bool(flag))
    }
}

impl From<i64> for Leaf {
    fn from(number: i64) -> Self {
        Self(Value::Integer(number.into()))
    }
}

impl<T: Into<Self>> From<Vec<T>> for Leaf {
    fn from(items: Vec<T>) -> Self {
        let node = |item: T| Node { value: item.into().0, offset: 0 };
        Self(Value::Array(items.into_iter().map(node).collect()))
    }
}

impl Leaf {
    /// A table with one key.
    pub(crate) fn table(name: &str, value: impl Into<Self>) -> Self {
        Self(Value::Object(vec![(name.to_owned(), Node { value: value.into().0, offset: 0 })]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_replaced_and_the_rest_stays() {
        let layer = Layer::of("x.toml", "a = 1\n[t]\nb = 'x'\nc = 'y'\n[[l]]\nname = 'n'\nd = 1\n");
        let layer = layer
            .expect("TOML")
            .set(&["t", "b"], "z")
            .set(&["l", "n", "d"], 2_i64)
            .set(&["new", "table"], true)
            .unset(&["t", "c"]);
        let read = layer.read(|root| {
            let a = root.required("a", |field| field.integer(1..=9_i64));
            let b = root.section("t", |t| t.required("b", |field| field.text(1..=9)));
            let table = root.section("new", |new| new.required("table", |field| field.boolean()));
            let list = root.list("l", |field| {
                field.object(|item| {
                    item.required("name", |field| field.text(1..=9));
                    item.required("d", |field| field.integer(1..=9_i64))
                })
            });
            Some((a?, b?, table?, list))
        });
        assert_eq!(read.expect("read"), (1, "z".to_owned(), true, vec![2]));
    }

    #[test]
    fn a_value_that_is_wrong_is_told_like_one_in_the_file() {
        let layer = Layer::of("x.toml", "\na = 1\n").expect("TOML").set(&["b"], 7_i64);
        let exit =
            layer.read(|root| root.required("a", |field| field.integer(1..=9_i64))).expect_err("unknown");
        assert_eq!((exit.status(), exit.message()), (64, "x.toml:1: b: is not a known field"));
    }
}
