//! Paths in JSON: text; those that are no UTF-8, as a list of their bytes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Both forms.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Form<T, B> {
    Text(T),
    Bytes(B),
}

fn form(path: &Path) -> Form<&str, &[u8]> {
    match path.to_str() {
        Some(text) => Form::Text(text),
        None => Form::Bytes(path.as_os_str().as_bytes()),
    }
}

fn path(form: Form<String, Vec<u8>>) -> PathBuf {
    match form {
        Form::Text(text) => text.into(),
        Form::Bytes(bytes) => OsString::from_vec(bytes).into(),
    }
}

/// A path as a value.
pub fn json(path: &Path) -> serde_json::Value {
    serde_json::to_value(form(path)).unwrap_or_default()
}

/// A path, for `serde(with)`.
pub mod one {
    use super::*;

    /// Writes one.
    ///
    /// # Errors
    /// The writer's.
    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        form(path).serialize(to)
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Form::deserialize(from).map(path)
    }
}

/// A path that need not be there.
pub mod maybe {
    use super::*;

    /// Writes one, or null.
    ///
    /// # Errors
    /// The writer's.
    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        path.as_deref().map(form).serialize(to)
    }

    /// Reads one, or null.
    ///
    /// # Errors
    /// It is none.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::deserialize(from)?.map(path))
    }
}

/// A list of paths.
pub mod many {
    use super::*;

    /// Writes them.
    ///
    /// # Errors
    /// The writer's.
    pub fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(paths.iter().map(|path| form(path)))
    }

    /// Reads them.
    ///
    /// # Errors
    /// It is none.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::deserialize(from)?.into_iter().map(path).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Three {
        #[serde(with = "one")]
        one: PathBuf,
        #[serde(with = "maybe")]
        maybe: Option<PathBuf>,
        #[serde(with = "many")]
        many: Vec<PathBuf>,
    }

    #[test]
    fn every_path_comes_back() {
        let odd = PathBuf::from(OsString::from_vec(b"/a/\xff\xfe\n".to_vec()));
        for path in [PathBuf::from("/a/b \u{e9}"), odd, PathBuf::new()] {
            for maybe in [None, Some(path.clone())] {
                let three = Three { one: path.clone(), maybe, many: vec![path.clone(); 2] };
                let text = serde_json::to_string(&three).expect("JSON");
                assert_eq!(serde_json::from_str::<Three>(&text).expect("back"), three);
            }
        }
        let plain = Three { one: "/v".into(), maybe: None, many: vec![] };
        let text = r#"{"one":"/v","maybe":null,"many":[]}"#;
        assert_eq!(serde_json::to_string(&plain).expect("JSON"), text);
    }
}
