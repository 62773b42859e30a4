module zeroth

go 1.26
