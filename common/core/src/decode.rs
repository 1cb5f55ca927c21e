//! Decoding of JSON requests and TOML configuration that reports every mistake with its location.
//!
//! Text is parsed into a tree of [`Node`]s by [`json()`] or [`toml()`]. A reader then takes fields
//! out of an [`Object`] by name. Missing, mistyped, unknown and unacceptable fields are recorded in
//! [`Mistakes`], and reading continues. The result is valid only if [`Mistakes::finish`] finds no
//! mistake.
//!
//! ```
//! use postern_core::decode::{Mistakes, json};
//! let mistakes = Mistakes::default();
//! let node = json(br#"{"email": 7, "shoe": 44}"#, &mistakes).ok_or("not JSON")?;
//! let email = mistakes.object(&node, |request| request.required("email", |field| field.text(3..=254)));
//! let all = mistakes.finish(email).err().ok_or("no mistakes")?;
//! assert_eq!(all.len(), 2); // "/email" is not a string, "/shoe" is unknown
//! # Ok::<(), &str>(())
//! ```

mod accepted;
mod field;
mod json;
mod mistake;
mod object;
mod path;
mod settings;
mod toml;
mod units;

pub(crate) use accepted::AcceptedField;
pub use accepted::AcceptedFields;
pub use field::Field;
pub use field::NO_NUL;
pub use json::json;
pub use mistake::{Mistake, Mistakes, Weight};
pub use object::{Object, is_similar};
pub use settings::defaults;
pub use toml::{toml, toml_at};
pub use units::parse_duration;

/// A value with its position in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Byte offset in the source text. 0 for JSON, where mistakes are located by pointer.
    pub offset: usize,
}

/// A value of JSON or TOML. Objects keep the order of the text and have no duplicate names.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number without fraction or exponent.
    Integer(i128),
    /// Any other number.
    Float(f64),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Node>),
    /// An object.
    Object(Vec<(String, Node)>),
}

impl Node {
    /// Creates a node without a position in a text.
    pub fn new(value: impl Into<Value>) -> Self {
        let value = value.into();
        Self { value, offset: 0 }
    }

    /// Converts to a `serde_json` value. Numbers that JSON cannot represent become `null`.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::{Number, Value as Json};
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(flag) => Json::Bool(*flag),
            Value::Integer(number) => i64::try_from(*number)
                .map(Number::from)
                .or_else(|_| u64::try_from(*number).map(Number::from))
                .map_or(Json::Null, Json::Number),
            Value::Float(number) => Number::from_f64(*number).map_or(Json::Null, Json::Number),
            Value::String(text) => Json::String(text.clone()),
            Value::Array(items) => Json::Array(items.iter().map(Self::to_json).collect()),
            Value::Object(entries) => Json::Object(
                entries
                    .iter()
                    .map(|(name, node)| (name.clone(), node.to_json()))
                    .collect(),
            ),
        }
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<i128> for Value {
    fn from(number: i128) -> Self {
        Self::Integer(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl<const N: usize> From<[&str; N]> for Value {
    fn from(items: [&str; N]) -> Self {
        Self::Array(items.map(Node::new).into())
    }
}

impl Value {
    /// Returns the type of the value for error messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }
}
