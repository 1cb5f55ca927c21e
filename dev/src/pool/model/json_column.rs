//! JSON values in text columns.

/// A value that is stored as JSON in a text column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JsonColumn<T>(pub(crate) T);

impl<T: serde::de::DeserializeOwned> TryFrom<String> for JsonColumn<T> {
    type Error = serde_json::Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        serde_json::from_str(&text).map(Self)
    }
}

impl<T> std::ops::Deref for JsonColumn<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Serializes a value for a text column.
pub(crate) fn to_json_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain fields and string keys serialize to JSON")
}
