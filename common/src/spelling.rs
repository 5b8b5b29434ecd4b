//! What somebody may have meant who wrote an unknown name.

/// The known name that is nearest to `wrong`, if one is near enough to be meant.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = fold(wrong);
    let allowed = (folded.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|name| (edit_distance(&folded, &fold(name)), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Case and separators are the commonest slips.
fn fold(name: &str) -> String {
    name.chars()
        .take(64)
        .filter(|c| !matches!(c, '_' | '-' | ' '))
        .flat_map(char::to_lowercase)
        .collect()
}

/// The number of insertions, removals and replacements of one character between two short texts.
#[must_use]
pub fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (done, from_char) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = done + 1;
        for (column, to_char) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(from_char != *to_char);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_name_that_was_meant_and_a_stranger_finds_none() {
        let known = ["jobName", "jobHandler", "callbackUrl", "timeoutMs"];
        assert_eq!(nearest("jobname", known), Some("jobName"));
        assert_eq!(nearest("job_handler", known), Some("jobHandler"));
        assert_eq!(nearest("calbackURL", known), Some("callbackUrl"));
        assert_eq!(nearest("colour", known), None);
    }
}
