/* stub until merged */
#include "serve/pn_oai_error.h"
PN_INTERNAL void pn_anthropic_error_json(const pn_oai_error *e, pn_str *out);
PN_INTERNAL void pn_anthropic_error_json(const pn_oai_error *e, pn_str *out) { pn_oai_error_json(e, out); }
