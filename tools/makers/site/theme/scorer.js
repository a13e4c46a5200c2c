// Among the pages that the search finds equally good, the page of error messages comes first: most of what people
// type there is a part of a message.
var Scorer = {
  score: ([page, , , , score]) => score + (page === "lessons/pages/errors" ? 1 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
