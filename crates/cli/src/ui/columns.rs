//! Text in columns under headings.

use std::fmt;

use inlock_volume::Printable;

/// Rows of cells, in columns as wide as their widest cell.
pub(crate) struct Columns {
    lines: Vec<Vec<String>>,
}

impl Columns {
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self { lines: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()] }
    }

    /// Adds a row, escaped; missing cells at its end are shown as `-`.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        let mut cells: Vec<String> = cells.iter().map(|cell| Printable::new(cell).to_string()).collect();
        cells.resize(self.lines[0].len(), "-".to_owned());
        self.lines.push(cells);
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| self.lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.lines[0].len()).map(width).collect();
        for line in &self.lines {
            let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_is_as_wide_as_widest_cell() {
        let mut columns = Columns::new(&["A", "LONG", "C"]);
        columns.row(vec!["wide".to_owned(), "x".to_owned(), "y".to_owned()]);
        columns.row(vec!["z\n".to_owned()]);
        assert_eq!(columns.to_string(), "A        LONG  C\nwide     x     y\nz\\u000a  -     -\n");
    }
}
