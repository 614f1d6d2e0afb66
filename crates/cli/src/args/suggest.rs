//! The name that was probably meant by one that does not exist.

use strsim::damerau_levenshtein;

/// Returns the name nearest to `word`, if at most a third of the characters differ.
pub(super) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let near = names.into_iter().filter_map(|name| {
        let distance = damerau_levenshtein(&lower, &name.to_lowercase());
        (distance <= word.len().max(name.len()) / 3).then_some((distance, name))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_near_up_to_a_third_of_its_characters() {
        let names = ["luksFormat", "luksOpen", "open", "serve", "status", "foreground", "header"];
        for (word, expected) in [
            ("luksopen", Some("luksOpen")),
            ("luksOpne", Some("luksOpen")),
            ("opn", Some("open")),
            ("stat", Some("status")),
            ("headers", Some("header")),
            ("SERVE", Some("serve")),
            ("foo", None),
            ("luksfrobnicate", None),
            ("format", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, names), expected, "{word}");
        }
    }
}
